//! Numbers with and without units, as people type them.

pub use lossfeed_stats::bytes;

/// A finite number above zero.
///
/// # Errors
/// The form that the option takes.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x.is_finite() => Ok(x),
        _ => Err("must be a number above 0".to_owned()),
    }
}

/// "resnet=90" → the job and its number of epochs. A job's name may have a "=" in it.
///
/// # Errors
/// The form that the option takes.
pub fn job_epochs(text: &str) -> Result<(String, u64), String> {
    match text.rsplit_once('=').map(|(job, epochs)| (job, epochs.parse())) {
        Some((job, Ok(epochs))) if !job.is_empty() && epochs > 0 => Ok((job.to_owned(), epochs)),
        _ => Err("must be a job's name and its number of epochs, as in resnet=90".to_owned()),
    }
}

/// A share from 0 to 1.
///
/// # Errors
/// The form that the option takes.
pub fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if (0.0..=1.0).contains(&x) => Ok(x),
        _ => Err("must be from 0 to 1".to_owned()),
    }
}

/// "250us", "2ms" or "1.5s" → seconds. A number without a unit is refused, for nobody knows what was meant: 20 of what?
///
/// # Errors
/// The form that the option takes.
pub fn seconds(text: &str) -> Result<f64, String> {
    let (number, unit) = split_unit(text);
    let scale = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "" if number.parse() == Ok(0.0) => 1.0,
        "" if number.parse::<f64>().is_ok() => {
            return Err(format!("{number} has no unit: write {number}ms or {number}s"));
        }
        "" => return Err("must be a time such as 2ms or 0.5s".to_owned()),
        _ => return Err(format!("unit {unit:?} is not one of us, ms, s, min")),
    };
    match number.parse::<f64>() {
        Ok(x) if x >= 0.0 && x.is_finite() => Ok(x * scale),
        _ => Err("must be a time such as 2ms or 0.5s".to_owned()),
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let cut = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(cut);
    (number, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_become_base_units() {
        assert_eq!(seconds("2ms"), Ok(0.002));
        assert_eq!((seconds("1.5 s"), seconds("0")), (Ok(1.5), Ok(0.0)));
        assert!(seconds("20").unwrap_err().contains("write 20ms or 20s"));
        assert_eq!(bytes("20MB"), Ok(20_000_000));
        assert_eq!(bytes("1.5 GiB/s"), Ok(1_610_612_736));
        for bad in ["", "-1", "2parsec", "nan", "1e400", "."] {
            assert!(seconds(bad).is_err() && bytes(bad).is_err(), "{bad:?} went through");
        }
    }
}
