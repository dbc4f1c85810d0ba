//! Closed sets of words, each with its one table: values of options, metric labels, words of the admin
//! API.

/// Declares an enum whose values have labels.
macro_rules! labels {
    ($(#[$meta:meta])* $Name:ident: $($(#[$variant_meta:meta])* $Variant:ident = $label:literal,)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Name {
            $($(#[$variant_meta])* $Variant),*
        }

        impl $Name {
            #[allow(dead_code, reason = "not every set is gone through")]
            pub const ALL: &[$Name] = &[$($Name::$Variant),*];

            pub fn label(self) -> &'static str {
                match self { $($Name::$Variant => $label),* }
            }
        }
    };
}

pub(crate) use labels;
