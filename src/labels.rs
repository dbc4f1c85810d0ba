//! Enums whose variants have a text: option values, metric labels, and values in the admin API and the access log.

/// A value of such an enum.
pub trait Label: Copy {
    /// Returns the text of the variant.
    fn label(self) -> &'static str;
}

/// Such an enum whose variants can be listed.
pub trait LabelSet: Label + 'static {
    const ALL: &'static [Self];
}

/// Declares an enum with a text per variant, the list `ALL` of its variants, `LABELS` of their texts, and `label`.
macro_rules! labels {
    ($(#[$meta:meta])* $Name:ident: $($(#[$variant_meta:meta])* $Variant:ident = $label:literal,)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Name {
            $($(#[$variant_meta])* $Variant),*
        }

        impl $Name {
            #[allow(dead_code, reason = "not every enum is iterated over")]
            pub const ALL: &[$Name] = &[$($Name::$Variant),*];
            #[allow(dead_code, reason = "not every enum has its texts in a list")]
            pub const LABELS: &[&str] = &[$($label),*];

            pub const fn label(self) -> &'static str {
                match self { $($Name::$Variant => $label),* }
            }
        }

        impl $crate::labels::LabelSet for $Name {
            const ALL: &'static [$Name] = $Name::ALL;
        }

        impl $crate::labels::Label for $Name {
            fn label(self) -> &'static str {
                $Name::label(self)
            }
        }
    };
}

pub(crate) use labels;
