//! Rules that are broken on purpose: what `sabotage.rs` of a crate is made of.
//!
//! A test that cannot fail proves nothing. A crate names with [`variants!`] the ways in which its rules can
//! be broken, and asks with [`sabotaged!`] in its production path whether one is. Without its feature
//! `sabotage` the type has a single value, and every question about it is answered `false` at compile time.

/// Declares the type `Sabotage` of a crate: its variants, in lists, each with the rule that it breaks and, if
/// it is known, where it was seen.
///
/// The crate has a feature `sabotage`, and calls this in its module `sabotage`.
#[macro_export]
macro_rules! variants {
    ($(
        $(#[doc = $list_doc:literal])+
        $list:ident {
            $($(#[doc = $doc:literal])+ $variant:ident: $rule:literal $(, $origin:literal)?;)*
        }
    )+) => {
        /// Which rule is broken, if any.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Sabotage {
            /// None: production.
            #[default]
            None,
            $($($(#[doc = $doc])+ #[cfg(feature = "sabotage")] $variant,)*)+
        }

        #[cfg(feature = "sabotage")]
        impl Sabotage {
            $($(#[doc = $list_doc])+ pub const $list: &[Self] = &[$(Self::$variant,)*];)+

            /// The rule that it breaks, in a few words or by its name.
            #[must_use]
            pub fn rule(self) -> &'static str {
                match self {
                    Self::None => "none",
                    $($(Self::$variant => $rule,)*)+
                }
            }

            /// Where it was seen, if that is known.
            #[must_use]
            pub fn origin(self) -> &'static str {
                match self {
                    Self::None => "",
                    $($(Self::$variant => concat!($($origin)?),)*)+
                }
            }

            /// What is broken, in a sentence.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self {
                    Self::None => "",
                    $($(Self::$variant => concat!($($doc),+),)*)+
                }
            }
        }
    };
}

/// Whether a rule is broken here: `sabotaged!(self.sabotage, IgnoreViews)`.
#[macro_export]
#[expect(clippy::crate_in_macro_def, reason = "the type is that of the crate which asks")]
macro_rules! sabotaged {
    ($sabotage:expr, $variant:ident) => {{
        #[cfg(feature = "sabotage")]
        let broken = $sabotage == crate::sabotage::Sabotage::$variant;
        #[cfg(not(feature = "sabotage"))]
        let broken = $sabotage != crate::sabotage::Sabotage::None;
        broken
    }};
}
