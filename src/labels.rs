//! Closed sets of words, each with its one table: values of options, metric labels, words of the admin
//! API.

/// A word of a closed set.
pub trait Label: Copy {
    fn label(self) -> &'static str;
}

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

        impl $crate::labels::Label for $Name {
            fn label(self) -> &'static str {
                $Name::label(self)
            }
        }
    };
}

pub(crate) use labels;
