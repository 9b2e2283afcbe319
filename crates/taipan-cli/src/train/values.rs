//! Values of settings that are more than a number or a text.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How the learning rate changes after the warm-up.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LrCurve {
    /// Constant after the warm-up
    Constant,
    /// Down along half a cosine
    Cosine,
    /// Warm-up, stable, decay: constant, then down along a line
    Wsd,
}

/// `90s`, `10m`, `1.5h`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time(pub Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Time, String> {
        let unit = [("s", 1.0), ("m", 60.0), ("h", 3600.0)];
        let seconds = unit.iter().find_map(|(unit, seconds)| {
            Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds)
        });
        let time = seconds.filter(|seconds| *seconds > 0.0);
        let time = time.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        time.map(Time).ok_or_else(|| format!("{text:?} is no time, expected one as 90s, 10m or 1h"))
    }
}

impl From<Time> for String {
    fn from(time: Time) -> String {
        format!("{}s", time.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let parse = |text: &str| Time::try_from(text.to_owned());
        let seconds = |text: &str| parse(text).map(|Time(time)| time.as_secs_f64());
        assert_eq!(seconds("90s"), Ok(90.0));
        assert_eq!(seconds("10m"), Ok(600.0));
        assert_eq!(seconds("1.5h"), Ok(5400.0));
        for wrong in ["", "90", "s", "-1s", "0s", "infs", "nanm", "1e300h", "1d"] {
            assert!(seconds(wrong).is_err(), "{wrong:?}");
        }
        let time = parse("90m").unwrap();
        assert_eq!(Time::try_from(String::from(time)), Ok(time));
    }
}
