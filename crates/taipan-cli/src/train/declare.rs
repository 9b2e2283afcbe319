//! One declaration per setting: its flag, its key in files and its field.

/// Declares the settings of a program:
///
/// ```text
/// defaults(config: Config, recipe: Recipe);
/// "Heading" {
///     /// The help of the flag
///     name: Type = default, flag "VALUE", Scope, in range;
/// }
/// ```
///
/// A setting without a default is an `Option`. A default and a range may use the
/// settings above it and the names that `defaults` declares. Further attributes of clap are in
/// `#[arg(…)]`. The ranges of the fields of a `Config` or a `Recipe` are checked there, not here.
///
/// This makes `Flags`, what the user specified; `Settings`, all of it resolved; and `SETTINGS`,
/// their names and scopes.
macro_rules! settings {
    // A setting without a default is an `Option`.
    (@type $type:ty) => { Option<$type> };
    (@type $type:ty = $default:expr) => { $type };
    (@value $flag:expr) => { $flag };
    (@value $flag:expr, $default:expr) => { $flag.unwrap_or_else(|| $default) };
    (
        defaults($($given:ident: $given_type:ty),*);
        $($heading:literal {$(
            $(#[doc = $doc:literal])+
            $(#[arg($($arg:tt)*)])?
            $name:ident: $type:ty $(= $default:expr)?,
            $(flag $value:literal)? $(positional $position:literal)?,
            $scope:ident $(, in $range:expr)?;
        )+})+
    ) => {
        /// What the user specified, on the command line or in a file. Every field is a flag and,
        /// except the last ones, a key of the file.
        #[derive(clap::Args, Clone, Debug, Default, Deserialize, Serialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub struct Flags {
            $($(
                $(#[doc = $doc])+
                #[arg(help_heading = $heading)]
                #[arg($(long, value_name = $value)? $(value_name = $position)?)]
                $(#[arg($($arg)*)])?
                pub $name: Option<$type>,
            )+)+
            /// Resume the run in --out from its last checkpoint, with its settings, bit for bit
            #[arg(long, help_heading = "Output")]
            #[serde(skip)]
            pub resume: bool,
            /// Replace the run in --out: remove its files, and begin a new one
            #[arg(long, help_heading = "Output", conflicts_with = "resume")]
            #[serde(skip)]
            pub overwrite: bool,
            /// Instead of training, sweep learning rates for some steps, and suggest one for --lr
            #[arg(long, help_heading = "Training", conflicts_with_all = ["resume", "overwrite"])]
            #[serde(skip)]
            pub lr_find: bool,
            /// Read flags from a TOML file, as `d-model = 256`; the command line wins over it
            #[arg(long, value_name = "FILE.toml")]
            #[serde(skip)]
            pub config: Option<PathBuf>,
            /// In the file of a run: what was not specified.
            #[arg(skip)]
            #[serde(skip_serializing)]
            pub derived: Option<Box<Flags>>,
        }

        /// All settings of a run.
        #[derive(Clone, Debug, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub struct Settings {
            $($(
                $(#[doc = $doc])+
                pub $name: settings!(@type $type $(= $default)?),
            )+)+
            /// What the user specified of these.
            #[serde(skip)]
            pub specified: Flags,
        }

        /// Every setting with its scope, in the order of the help.
        pub(super) const SETTINGS: &[(&str, Scope)] = &[$($((stringify!($name), Scope::$scope)),+),+];

        impl Flags {
            /// These and, where they are not given, `other`.
            pub(super) fn or(self, other: Flags) -> Flags {
                Flags { $($($name: self.$name.or(other.$name),)+)+ ..self }
            }
        }

        impl Settings {
            /// The flags and, where they are not given, the defaults.
            fn resolve(flags: Flags $(, $given: &$given_type)*) -> Settings {
                let specified = flags.clone();
                $($(let $name = settings!(@value flags.$name $(, $default)?);)+)+
                Settings { $($($name,)+)+ specified }
            }

            /// An error unless the settings with a range lie in it.
            #[allow(unused_variables)]
            fn check_ranges(&self) -> Result<(), InvalidValue> {
                let Settings { $($($name,)+)+ .. } = self.clone();
                $($($(check(stringify!($name), $name, $range)?;)?)+)+
                Ok(())
            }
        }
    };
}

pub(super) use settings;
