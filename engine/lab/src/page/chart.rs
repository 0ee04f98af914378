//! What every chart shares: scales, ticks, axes, marks and text that cannot break out.

/// Width of a chart, and of its margins.
pub(super) const WIDTH: f64 = 760.0;
pub(super) const LEFT: f64 = 64.0;
pub(super) const BOTTOM: f64 = 46.0;
pub(super) const TOP: f64 = 14.0;
/// Colours there are; `style` has one class for each.
pub(super) const COLOURS: usize = 8;

/// Text for HTML and SVG, in content and attributes. Control characters are left out: XML has none of them.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c if c.is_control() => {}
            c => escaped.push(c),
        }
    }
    escaped
}

/// The width of the longest of these names, with a mark before it: about, as nobody here knows the font.
pub(super) fn names_width<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    let most = names.map(|name| name.chars().count()).max().unwrap_or(0);
    (44.0 + 7.0 * most as f64).min(WIDTH / 2.0)
}

/// From values to places on the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    values: (f64, f64),
    places: (f64, f64),
    log: bool,
}

impl Scale {
    /// `values` from the least to the most; a logarithmic scale needs both above 0. One value alone lies in the
    /// middle.
    pub(super) fn new(values: (f64, f64), places: (f64, f64), log: bool) -> Self {
        Self { values, places, log }
    }
    pub(super) fn place(&self, value: f64) -> f64 {
        let bend = |x: f64| if self.log { x.ln() } else { x };
        let (least, most) = (bend(self.values.0), bend(self.values.1));
        let part = if most > least { (bend(value) - least) / (most - least) } else { 0.5 };
        self.places.0 + part * (self.places.1 - self.places.0)
    }
    /// Round values within the scale, about six; at least one.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let (least, most) = self.values;
        if most <= least {
            return vec![least];
        }
        if self.log {
            let decades = least.log10().floor() as i32..=most.log10().ceil() as i32;
            let factors: &[f64] = if decades.clone().count() > 5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let all = decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade)));
            let within: Vec<f64> = all.filter(|&tick| tick >= least * 0.999 && tick <= most * 1.001).collect();
            return if within.is_empty() { vec![least, most] } else { within };
        }
        let rough = (most - least) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|f| f * power).find(|&s| s >= rough).unwrap_or(power);
        let first = (least / step - 1e-9).ceil() as i64;
        (first..).map(|k| k as f64 * step).take_while(|&tick| tick <= most + step * 1e-9).collect()
    }
}

/// A number for an axis: 1500000 is 1.5M.
pub(super) fn short(value: f64) -> String {
    rounded(value, 4)
}

/// Numbers that stand beside each other, with two digits, or as many more as tell neighbours apart.
pub(super) fn told_apart(values: &[f64]) -> Vec<String> {
    let with = |digits| values.iter().map(|&value| rounded(value, digits)).collect::<Vec<_>>();
    (2..4).map(with).find(|texts| texts.windows(2).all(|pair| pair[0] != pair[1])).unwrap_or_else(|| with(4))
}

/// A number with so many digits that count, without zeros at its end.
fn rounded(value: f64, digits: i32) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let places =
        if scaled == 0.0 { 0 } else { (digits - 1 - scaled.abs().log10().floor() as i32).clamp(0, 9) as usize };
    let text = format!("{scaled:.places$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// Grid, ticks and names of both axes.
pub(super) fn axes(x: &Scale, y: &Scale, (x_name, y_name): (&str, &str), x_label: impl Fn(f64) -> String) -> String {
    let ((left, right), (bottom, top)) = (x.places, y.places);
    let mut svg = String::new();
    for tick in y.ticks() {
        let at = y.place(tick);
        svg += &format!("<line class=\"grid\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
        svg += &format!(
            "<text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            // Clear of a mark on the axis.
            left - 9.0,
            at + 4.0,
            short(tick)
        );
    }
    for (tick, label) in x.ticks().into_iter().map(|tick| (tick, x_label(tick))).filter(|named| !named.1.is_empty()) {
        let at = x.place(tick);
        svg += &format!(
            "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom:.1}\" y2=\"{:.1}\"/>",
            bottom + 4.0
        );
        svg += &format!(
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 17.0,
            escape(&label)
        );
    }
    svg += &format!("<line class=\"axis\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\"/>");
    svg += &format!(
        "<text class=\"name\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        (left + right) / 2.0,
        bottom + 36.0,
        escape(x_name)
    );
    svg += &format!(
        "<text class=\"name\" text-anchor=\"middle\" transform=\"translate(14 {:.1}) rotate(-90)\">{}</text>",
        (bottom + top) / 2.0,
        escape(y_name)
    );
    svg
}

/// The mark of the k-th line, around a point: colour and shape together tell lines apart.
pub(super) fn mark(k: usize, x: f64, y: f64, hollow: bool) -> String {
    let class = format!("m c{}{}", k % COLOURS, if hollow { " hollow" } else { "" });
    match (k + k / COLOURS) % 4 {
        0 => format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\"/>"),
        1 => {
            format!("<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"6.6\" height=\"6.6\"/>", x - 3.3, y - 3.3)
        }
        2 => format!("<path class=\"{class}\" d=\"M{x:.1} {:.1}l4.4 7.6h-8.8z\"/>", y - 4.6),
        _ => format!("<path class=\"{class}\" d=\"M{x:.1} {:.1}l4.4 4.6l-4.4 4.6l-4.4 -4.6z\"/>", y - 4.6),
    }
}

/// A picture that says what it is to those who cannot see it. On a narrow screen it scrolls: shrunk, nobody could read it.
pub(super) fn svg(height: f64, what: &str, inside: &str) -> String {
    let what = escape(what);
    format!(
        "<div class=\"wide\"><svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{what}\">{inside}</svg></div>\n"
    )
}
