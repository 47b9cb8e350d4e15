//! Tables for people.
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// A table with a header, without lines: it can be read, and cut by `awk`.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    table
}

/// A cell whose numbers line up.
pub(crate) fn right(text: impl ToString) -> Cell {
    Cell::new(text.to_string()).set_alignment(CellAlignment::Right)
}
