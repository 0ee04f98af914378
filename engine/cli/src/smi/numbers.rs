//! Numbers as people read them: three digits and a prefix, `-` for unknown.

/// The mark for an unknown number.
pub(super) const UNKNOWN: &str = "-";

/// "6.0/8.0 GiB": both in the unit of the larger.
pub(super) fn pair(used: Option<u64>, total: Option<u64>) -> String {
    let (Some(used), Some(total)) = (used, total) else { return UNKNOWN.to_owned() };
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let step = (0..units.len() - 1).take_while(|&k| total as f64 >= 1024f64.powi(k as i32 + 1)).count();
    let scale = 1024f64.powi(step as i32);
    let digits = usize::from(step > 0);
    format!("{:.digits$}/{:.digits$} {}", used as f64 / scale, total as f64 / scale, units[step])
}

/// Three digits and a decimal prefix: 1234567 → "1.23 M" followed by the unit.
pub(super) fn decimal(value: f64, unit: &str) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P"];
    // 999.5 would be written as 1000 of the smaller prefix.
    let step = (0..prefixes.len() - 1).take_while(|&k| value >= 999.5 * 1000f64.powi(k as i32)).count();
    let scaled = value / 1000f64.powi(step as i32);
    let digits = match () {
        () if step == 0 => 0,
        () if scaled < 9.995 => 2,
        () if scaled < 99.95 => 1,
        () => 0,
    };
    format!("{scaled:.digits$} {}{unit}", prefixes[step]).trim_end().to_owned()
}

/// "26.1 ms": three digits in seconds, milliseconds or microseconds.
pub(super) fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 999.5 => (us, "µs"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = if unit == "µs" || value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits_and_roll_over_to_the_next_prefix() {
        assert_eq!(decimal(0.0, ""), "0");
        assert_eq!(decimal(999.0, "B"), "999 B");
        assert_eq!(decimal(999.6, "B"), "1.00 kB");
        assert_eq!(decimal(41_234.0, ""), "41.2 k");
        assert_eq!(decimal(6_320_000_000.0, "B"), "6.32 GB");
        assert_eq!(
            [310.0, 999.6, 26_140.0, 131_000.0, 2_540_000.0].map(time).join(" "),
            "310 µs 1.0 ms 26.1 ms 131 ms 2.5 s"
        );
    }

    #[test]
    fn a_pair_of_sizes_shares_the_unit_of_the_larger() {
        assert_eq!(pair(Some(6 << 30), Some(8 << 30)), "6.0/8.0 GiB");
        assert_eq!(pair(Some(10), Some(1000)), "10/1000 B");
        assert_eq!(pair(None, Some(1)), "-");
    }
}
