//! Reasons of decisions that are made while a run goes on: each a number for a page of numbers, and words.

/// An enum of reasons, numbered from 1 in this order. Numbers are shown to other processes: new ones come last.
macro_rules! reasons {
    ($(#[$about:meta])* $reasons:ident { $($name:ident: $words:literal;)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $reasons {
            $(#[doc = concat!("Because ", $words, ".")] $name,)+
        }

        impl $reasons {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; [$(Self::$name),+].len()] = [$(Self::$name),+];
            /// All of them in words: number 1 is the first.
            pub const WORDS: &'static [&'static str] = &[$($words),+];

            /// For a page of numbers: 1 for the first.
            pub fn code(self) -> u64 {
                self as u64 + 1
            }

            /// The reason of that number; `None` for 0, and for one that a newer version may know.
            pub fn of_code(code: u64) -> Option<Self> {
                Self::ALL.into_iter().find(|why| why.code() == code)
            }

            /// In words.
            pub fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)+ }
            }
        }

        impl std::fmt::Display for $reasons {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.words())
            }
        }
    };
}
