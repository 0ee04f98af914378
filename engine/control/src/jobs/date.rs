//! Dates and times of day as cluster logs write them.

/// Seconds of `2017-10-07 01:11:39` since 1970 began, on a clock that is never set. `None` if it is no such text, or no
/// day of the calendar.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    let marks = [(4, b'-'), (7, b'-'), (10, b' '), (13, b':'), (16, b':')];
    if bytes.len() != 19 || marks.iter().any(|&(at, mark)| bytes[at] != mark) {
        return None;
    }
    let number = |from: usize, to: usize| {
        let digits = &bytes[from..to];
        let all = digits.iter().all(u8::is_ascii_digit);
        all.then(|| digits.iter().fold(0u32, |number, digit| 10 * number + u32::from(digit - b'0')))
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let right = (1..=12).contains(&month) && (1..=month_days(year, month)).contains(&day);
    if !right || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = 3600 * hour + 60 * minute + second;
    Some(86_400.0 * f64::from(days(year, month, day)) + f64::from(seconds))
}

fn is_leap(year: u32) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn month_days(year: u32, month: u32) -> u32 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01; before it, negative.
fn days(year: u32, month: u32, day: u32) -> i32 {
    // Leap days since the year 0, up to the end of the year before.
    let leap_days = |year: i32| year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let before = year as i32 - 1;
    let since_1970 = 365 * (year as i32 - 1970) + leap_days(before) - leap_days(1969);
    let in_year: u32 = (1..month).map(|month| month_days(year, month)).sum();
    since_1970 + (in_year + day) as i32 - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_days_are_where_they_are() {
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(seconds("1969-12-31 23:59:59"), Some(-1.0));
        assert_eq!(seconds("2001-09-09 01:46:40"), Some(1e9));
        assert_eq!(seconds("2020-02-29 12:00:00"), Some(1_582_977_600.0));
    }

    /// The twin counts day by day.
    #[test]
    fn every_day_of_eight_hundred_years_is_one_after_the_day_before() {
        let mut expected = seconds("1600-01-01 00:00:00").unwrap();
        for year in 1600..2400 {
            for month in 1..=12 {
                for day in 1..=31 {
                    let found = seconds(&format!("{year}-{month:02}-{day:02} 00:00:00"));
                    let exists = day <= 28
                        || match month {
                            2 => day == 29 && (year % 400 == 0 || (year % 4 == 0 && year % 100 != 0)),
                            4 | 6 | 9 | 11 => day <= 30,
                            _ => true,
                        };
                    assert_eq!(found, exists.then_some(expected), "{year}-{month}-{day}");
                    expected += if exists { 86_400.0 } else { 0.0 };
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_no_date_is_none(text in "[-0-9: +a]{0,21}|\\PC{19}") {
            let right = |c: (usize, char)| match c.0 {
                4 | 7 => c.1 == '-',
                10 => c.1 == ' ',
                13 | 16 => c.1 == ':',
                _ => c.1.is_ascii_digit(),
            };
            if text.chars().count() != 19 || !text.chars().enumerate().all(right) {
                prop_assert_eq!(seconds(&text), None);
            }
        }

        #[test]
        fn a_time_of_day_is_what_it_says(hour in 0..30u32, minute in 0..70u32, second in 0..70u32) {
            let found = seconds(&format!("2020-06-09 {hour:02}:{minute:02}:{second:02}"));
            let exists = hour < 24 && minute < 60 && second < 60;
            let midnight = seconds("2020-06-09 00:00:00").unwrap();
            prop_assert_eq!(found, exists.then(|| midnight + f64::from(3600 * hour + 60 * minute + second)));
        }
    }
}
