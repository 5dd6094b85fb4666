//! What `tiffin top` shows: which list, in which order, which row, and what a key changes.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;
use serde_json::Value;

use super::rows::{self, List};

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    On,
    Quit,
}

/// What is shown.
pub(super) struct State {
    pub(super) snapshot: Value,
    /// Why the last snapshot did not arrive.
    pub(super) problem: Option<String>,
    pub(super) tab: usize,
    /// The column by which each list is sorted, and whether the order is reversed.
    pub(super) order: [(usize, bool); rows::TABS.len()],
    /// The row that is open, by its name: the order may change while it is read.
    pub(super) opened: Option<String>,
    pub(super) is_help: bool,
    pub(super) table: TableState,
}

impl State {
    pub(super) fn new(snapshot: Value) -> Self {
        let order = rows::TABS.map(|it| (it.sorted_by, it.largest_first));
        let table = TableState::default().with_selected(Some(0));
        Self { snapshot, problem: None, tab: 0, order, opened: None, is_help: false, table }
    }

    /// A new snapshot has arrived.
    pub(super) fn update(&mut self, snapshot: Value) {
        (self.snapshot, self.problem) = (snapshot, None);
        self.keep_selection();
    }

    /// The server did not answer.
    pub(super) fn lose(&mut self, problem: String) {
        self.problem = Some(problem);
    }

    /// The rows of the list that is shown, in its order.
    pub(super) fn list(&self) -> List {
        let (column, is_reversed) = self.order.get(self.tab).copied().unwrap_or_default();
        let mut list = rows::list(&self.snapshot, self.tab);
        list.rows.sort_by(|one, other| {
            let order = one.key(column).cmp(&other.key(column));
            if is_reversed { order.reverse() } else { order }
        });
        list
    }

    /// Does what a key says.
    pub(super) fn press(&mut self, key: KeyEvent) -> Flow {
        let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt {
            return Flow::Quit;
        }
        if key.kind == KeyEventKind::Release {
            return Flow::On;
        }
        let count = self.list().rows.len();
        match key.code {
            KeyCode::Char('q') => return Flow::Quit,
            KeyCode::Esc | KeyCode::Backspace if self.opened.is_some() || self.is_help => {
                (self.opened, self.is_help) = (None, false);
            }
            KeyCode::Esc => return Flow::Quit,
            KeyCode::Char('?' | 'h') => self.is_help = !self.is_help,
            KeyCode::Tab | KeyCode::Right => self.go_to((self.tab + 1) % rows::TABS.len()),
            KeyCode::BackTab | KeyCode::Left => {
                self.go_to((self.tab + rows::TABS.len() - 1) % rows::TABS.len());
            }
            KeyCode::Char(digit @ '1'..='9') => {
                let tab = digit as usize - '1' as usize;
                if tab < rows::TABS.len() {
                    self.go_to(tab);
                }
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected() + 1, count),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected().saturating_sub(1), count),
            KeyCode::Home | KeyCode::Char('g') => self.select(0, count),
            KeyCode::End | KeyCode::Char('G') => self.select(count, count),
            KeyCode::Enter if self.opened.is_some() => self.opened = None,
            KeyCode::Enter => self.opened = self.selected_id(),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => {
                if let Some((_, is_reversed)) = self.order.get_mut(self.tab) {
                    *is_reversed = !*is_reversed;
                }
            }
            _ => {}
        }
        Flow::On
    }

    pub(super) fn selected(&self) -> usize {
        self.table.selected().unwrap_or_default()
    }

    fn go_to(&mut self, tab: usize) {
        (self.tab, self.opened, self.is_help) = (tab, None, false);
        self.table.select(Some(0));
    }

    fn select(&mut self, row: usize, count: usize) {
        self.table.select(Some(row.min(count.saturating_sub(1))));
        if self.opened.is_some() {
            self.opened = self.selected_id();
        }
    }

    fn selected_id(&self) -> Option<String> {
        self.list().rows.into_iter().nth(self.selected()).map(|it| it.id)
    }

    fn keep_selection(&mut self) {
        let rows = self.list().rows;
        let place = self.opened.as_ref().and_then(|id| rows.iter().position(|it| it.id == *id));
        if place.is_none() {
            self.opened = None;
        }
        self.select(place.unwrap_or(self.selected()), rows.len());
    }

    fn sort_by_next(&mut self) {
        let columns = rows::TABS.get(self.tab).map_or(1, |it| it.columns.len());
        if let Some((column, is_reversed)) = self.order.get_mut(self.tab) {
            *column = (*column + 1) % columns;
            // Names from the first, numbers from the largest.
            *is_reversed = *column > 0;
        }
    }
}
