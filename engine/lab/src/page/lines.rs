//! Lines over one axis, named where they end.

use super::chart::{BOTTOM, COLOURS, LEFT, Scale, TOP, WIDTH, axes, escape, mark, names_width, short, svg};

/// Lines drawn with a mark at every point have this many points at most; on longer ones some points have a mark.
const MARKS: usize = 40;
/// Between two names, at least.
const GAP: f64 = 15.0;

/// One line.
pub(super) struct Line {
    pub(super) name: String,
    /// Colour and shape; a control has those of what it controls.
    pub(super) kind: usize,
    /// Dashed.
    pub(super) control: bool,
    pub(super) points: Vec<(f64, f64)>,
}

/// A chart of lines.
pub(super) struct Lines<'a> {
    pub(super) what: &'a str,
    pub(super) x_name: &'a str,
    pub(super) y_name: &'a str,
    /// The unit behind a value that is pointed at, such as "%".
    pub(super) units: (&'a str, &'a str),
    pub(super) log: (bool, bool),
    /// Only whole numbers stand at the other axis.
    pub(super) whole: bool,
    /// Where the values' axis ends if it does not end at the largest value.
    pub(super) y_most: Option<f64>,
    /// Whether the values' axis begins near the least value instead of at 0.
    pub(super) close: bool,
    pub(super) lines: &'a [Line],
}

impl Lines<'_> {
    /// The picture; points that a logarithmic axis cannot show are left out.
    pub(super) fn draw(&self) -> String {
        let shown = |&&(x, y): &&(f64, f64)| {
            x.is_finite() && y.is_finite() && (!self.log.0 || x > 0.0) && (!self.log.1 || y > 0.0)
        };
        let points = || self.lines.iter().flat_map(|line| line.points.iter()).filter(shown);
        if points().next().is_none() {
            return "<p class=\"note\">Nothing to draw on these axes.</p>\n".to_owned();
        }
        let least = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::NEG_INFINITY, f64::max);
        let height = (GAP * self.lines.len() as f64 + TOP + BOTTOM).max(360.0);
        let right = WIDTH - names_width(self.lines.iter().map(|line| &line.name[..]));
        let x_least = if self.log.0 { least(|p| p.0) } else { least(|p| p.0).min(0.0) };
        let x = Scale::new((x_least, most(|p| p.0)), (LEFT, right), self.log.0);
        let room = if self.close { (most(|p| p.1) - least(|p| p.1)).max(1e-3 * most(|p| p.1)) * 0.1 } else { 0.0 };
        let y_least = match (self.log.1, self.close) {
            (true, _) => least(|p| p.1) * 0.9,
            (false, true) => least(|p| p.1) - room,
            (false, false) => 0.0,
        };
        let top = self.y_most.unwrap_or(if self.close { most(|p| p.1) + room } else { most(|p| p.1) * 1.05 });
        let y_most = if top > y_least { top } else { y_least + 1.0 };
        let y = Scale::new((y_least, y_most), (height - BOTTOM, TOP), self.log.1);
        let mut inside = axes(&x, &y, (self.x_name, self.y_name), |tick| {
            if self.whole && tick.fract() != 0.0 { String::new() } else { short(tick) }
        });
        let mut names = Vec::new();
        for line in self.lines {
            let places: Vec<_> = line.points.iter().filter(shown).map(|p| (x.place(p.0), y.place(p.1), *p)).collect();
            let Some(&(end_x, end_y, _)) = places.last() else { continue };
            let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
            let dashed = if line.control { " dashed" } else { "" };
            let name = escape(&line.name);
            inside += &format!(
                "<g class=\"line\"><polyline class=\"l c{}{dashed}\" points=\"{}\"><title>{name}</title></polyline>",
                line.kind % COLOURS,
                path.join(" ")
            );
            let every = places.len().div_ceil(MARKS);
            for (k, (at_x, at_y, (value_x, value_y))) in places.iter().enumerate() {
                if k % every == 0 || k + 1 == places.len() {
                    let said =
                        format!("{name}: {}{} at {}{}", short(*value_y), self.units.1, short(*value_x), self.units.0);
                    let mark = mark(line.kind, *at_x, *at_y, line.control);
                    inside += &format!("<g>{mark}<title>{said}</title></g>");
                }
            }
            inside += "</g>";
            names.push((end_x, end_y, line));
        }
        let key = key(self.lines);
        inside += &named(names, (right, height));
        svg(height, self.what, &inside) + &key
    }
}

/// The lines' names below a chart, where a narrow screen cuts those at their ends.
fn key(lines: &[Line]) -> String {
    let one = |line: &Line| {
        let mark = mark(line.kind, 7.0, 7.0, line.control);
        format!("<span><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\">{mark}</svg>{}</span>", escape(&line.name))
    };
    format!("<div class=\"key narrow\">{}</div>\n", lines.iter().map(one).collect::<Vec<_>>().join("\n"))
}

/// The names beside the ends of their lines, pushed apart so that all can be read.
fn named(mut names: Vec<(f64, f64, &Line)>, (right, height): (f64, f64)) -> String {
    names.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut places: Vec<f64> = names.iter().map(|name| name.1).collect();
    for k in 1..places.len() {
        places[k] = places[k].max(places[k - 1] + GAP);
    }
    // Back up from the bottom, if that pushed the last ones out.
    let mut most = height - BOTTOM + 4.0;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - GAP;
    }
    let at = right + 26.0;
    let mut svg = String::new();
    for ((end_x, end_y, line), place) in names.into_iter().zip(places) {
        svg += &format!(
            "<path class=\"lead\" d=\"M{:.1} {end_y:.1}H{:.1}L{:.1} {place:.1}\"/>",
            end_x + 6.0,
            right + 8.0,
            at - 8.0
        );
        svg += &mark(line.kind, at, place, line.control);
        svg += &format!(
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            at + 10.0,
            place + 4.0,
            escape(&line.name)
        );
    }
    svg
}
