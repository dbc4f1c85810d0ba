//! Decides which Ingresses are those of one ingress-nginx controller. Each controller has a class, with clients and
//! settings of its own, while the imported config is that of one gateway.

use std::collections::HashMap;

use crate::import::syntax::shorten;
use crate::import::yaml::YamlNode;

/// The classes of the Ingresses.
pub struct Classes<'a> {
    /// The controller of each `IngressClass` by its name.
    controllers: HashMap<&'a str, &'a str>,
    /// The class of the first Ingress that has one of ingress-nginx.
    first: Option<&'a str>,
    /// Other Ingresses have other classes of ingress-nginx.
    is_mixed: bool,
}

/// Whether an Ingress belongs to the import.
pub enum Membership {
    Same,
    /// It may be for another controller than the first Ingress. The text says why.
    Unclear(String),
    /// It is not for ingress-nginx.
    Other(String),
}

impl<'a> Classes<'a> {
    /// Reads the classes of all Ingresses, and the `IngressClass` documents.
    pub fn read_classes(
        ingresses: impl Iterator<Item = &'a YamlNode>,
        classes: impl Iterator<Item = &'a YamlNode>,
    ) -> Classes<'a> {
        let controllers = classes
            .filter_map(|class| Some((class.text_at(&["metadata", "name"])?, class.text_at(&["spec", "controller"])?)));
        let mut found = Classes { controllers: controllers.collect(), first: None, is_mixed: false };
        for class in ingresses.filter_map(find_class) {
            if found.is_of_nginx(class) {
                let first = *found.first.get_or_insert(class);
                found.is_mixed |= first != class;
            }
        }
        found
    }

    /// Returns whether an Ingress is for the controller of the first one.
    pub fn find_membership(&self, ingress: &YamlNode) -> Membership {
        const CLOSED: &str = "each class has a controller with clients and settings of its own, so its routes are closed; \
                              import the Ingresses of one class at a time";
        match find_class(ingress) {
            Some(class) if !self.is_of_nginx(class) => {
                Membership::Other(format!("its class is `{}`, so it is left out", shorten(class)))
            }
            Some(class) if self.is_mixed && self.first != Some(class) => {
                let first = shorten(self.first.unwrap_or_default());
                Membership::Unclear(format!("its class is `{}`, not `{first}`, and {CLOSED}", shorten(class)))
            }
            None if self.is_mixed => Membership::Unclear(format!("it has no class, and {CLOSED}")),
            _ => Membership::Same,
        }
    }

    /// Returns whether a class is one of ingress-nginx: by the controller of its `IngressClass`, or else by its name.
    fn is_of_nginx(&self, class: &str) -> bool {
        match self.controllers.get(class) {
            Some(controller) => controller.starts_with("k8s.io/") || controller.contains("ingress-nginx"),
            None => class.contains("nginx"),
        }
    }
}

fn find_class(ingress: &YamlNode) -> Option<&str> {
    let class = ingress.text_at(&["spec", "ingressClassName"]);
    class.or_else(|| ingress.text_at(&["metadata", "annotations", "kubernetes.io/ingress.class"]))
}
