//! Figures of lines over a common axis, as SVG and as PNG, drawn by `plotters` in a font that comes with the program.
//!
//! A figure is a column of panels. A line of more points than the figure has columns is drawn through the lowest and the
//! highest point of each column, so that no spike is lost and files stay small.

use crate::formats::atomic;
use crate::shown::shown_path;
use anyhow::{Context, Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::Path;
use std::sync::Once;

const WIDTH: u32 = 960;
const PANEL: u32 = 280;
const FONT: &str = "dejavu";
/// Colours that people who see colours differently can tell apart, too; after the last one the first comes again.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(60, 60, 60),
];

/// Points under a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines in one coordinate system.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub title: String,
    pub x_label: String,
    pub lines: Vec<Line>,
}

/// The file's content by its ending, `.svg` or `.png`, written atomically. Errors: another ending; nothing to draw; the file
/// cannot be written.
pub fn write(path: &Path, panels: &[Panel]) -> Result<()> {
    let place = shown_path(path);
    let panels: Vec<Panel> = panels.iter().filter_map(drawable).collect();
    if panels.is_empty() {
        bail!("{place}: found no points to draw, expected some");
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    });
    let size = (WIDTH, PANEL * panels.len() as u32);
    let bytes = match path.extension().and_then(|ending| ending.to_str()) {
        Some("svg") => svg(&panels, size),
        Some("png") => png(&panels, size),
        _ => bail!("{place}: found another ending, expected .svg or .png"),
    };
    let bytes = bytes.with_context(|| format!("{place}: cannot be drawn"))?;
    atomic::write(path, |file| Ok(file.write_all(&bytes)?))
}

fn svg(panels: &[Panel], size: (u32, u32)) -> Result<Vec<u8>> {
    let mut text = String::new();
    draw(&SVGBackend::with_string(&mut text, size).into_drawing_area(), panels)?;
    Ok(text.into_bytes())
}

fn png(panels: &[Panel], (width, height): (u32, u32)) -> Result<Vec<u8>> {
    let mut pixels = vec![0u8; (3 * width * height) as usize];
    draw(&BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area(), panels)?;
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(bytes)
}

/// What of a panel can be drawn: finite points, thinned out, in lines that have some.
fn drawable(panel: &Panel) -> Option<Panel> {
    let finite = |line: &Line| {
        // Beyond this, differences are no numbers any more.
        let fits = |x: f64| x.abs() < 1e300;
        let points = line.points.iter().copied().filter(|(x, y)| fits(*x) && fits(*y)).collect();
        Line { name: line.name.clone(), points: thinned(points) }
    };
    let lines: Vec<Line> = panel.lines.iter().map(finite).filter(|line| !line.points.is_empty()).collect();
    (!lines.is_empty()).then(|| Panel { lines, ..panel.clone() })
}

/// The first, the lowest and the highest point of each column of the figure.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let columns = WIDTH as usize;
    if points.len() <= 3 * columns {
        return points;
    }
    let piece = points.len().div_ceil(columns);
    let kept = points.chunks(piece).flat_map(|piece| {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let mut kept = vec![piece[0], *piece.iter().min_by(by_y).unwrap_or(&piece[0])];
        kept.push(*piece.iter().max_by(by_y).unwrap_or(&piece[0]));
        kept.sort_by(|a, b| a.0.total_cmp(&b.0));
        kept.dedup();
        kept
    });
    kept.collect()
}

/// The smallest and the largest of the numbers, apart from each other.
fn range(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    let apart = if low < high { 0.0 } else { (0.5f64).max(1e-3 * high.abs()) };
    (low - apart, high + apart)
}

fn draw<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panels: &[Panel]) -> Result<()>
where
    B::ErrorType: 'static,
{
    let failed = |error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("{error}");
    area.fill(&WHITE).map_err(failed)?;
    for (area, panel) in area.split_evenly((panels.len(), 1)).iter().zip(panels) {
        draw_panel(area, panel).map_err(failed)?;
    }
    area.present().map_err(failed)
}

fn draw_panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    panel: &Panel,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let points = || panel.lines.iter().flat_map(|line| line.points.iter().copied());
    let (left, right) = range(points().map(|(x, _)| x));
    let (low, high) = range(points().map(|(_, y)| y));
    let margin = 0.05 * (high - low);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 16))
        .margin(10)
        .margin_right(24)
        .x_label_area_size(34)
        .y_label_area_size(74)
        .build_cartesian_2d(left..right, low - margin..high + margin)?;
    chart
        .configure_mesh()
        .x_desc(&panel.x_label)
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 12))
        .light_line_style(WHITE)
        .draw()?;
    for (i, line) in panel.lines.iter().enumerate() {
        let style = COLORS[i % COLORS.len()].stroke_width(2);
        let drawn = chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
        drawn.label(&line.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 12))
        .draw()
}

/// A number of an axis, as short as it can be said.
fn number(x: f64) -> String {
    let plain = format!("{}", (x * 1e6).round() / 1e6);
    if x != 0.0 && (x.abs() < 1e-3 || x.abs() >= 1e6) { format!("{x:.1e}") } else { plain }
}
