//! Draws `tiffin top`.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Gauge, Paragraph, Row, Sparkline, Table, Tabs, Wrap};
use serde_json::Value;
use tiffin_types::units::Count;

use super::rows::{self, TABS, number, percent, text};
use super::state::State;
use crate::show;

/// The keys in the last line: as many as fit.
const KEYS: [&str; 3] = [
    "q quit  tab list  ↑↓ row  enter open  s sort  r reverse  ? help",
    "q quit  tab list  enter open  s sort  ? help",
    "q quit  ? help",
];
const HELP: [&str; 9] = [
    "q, ctrl-c        quit",
    "tab, ←, →, 1-5   another list",
    "↑, ↓, j, k       another row",
    "home, end        the first or last row",
    "enter            what is behind the row",
    "esc              back; quit if nothing is open",
    "s                sort by the next column",
    "r                reverse the order",
    "?                this help",
];

/// The smallest and the largest width that the first column is sure of: in between, a fifth of the terminal.
const NAME_WIDTH_MIN: u16 = 12;
const NAME_WIDTH_MAX: u16 = 30;
/// The smallest width of a column of numbers, which `1023.9 MiB` fills.
const NUMBER_WIDTH_MIN: u16 = 10;
/// The width of the mark of the column by which a list is sorted.
const MARK_WIDTH: u16 = 2;
/// The least height in which the outcomes may take more than one line.
const OUTCOMES_HEIGHT_MIN: u16 = 12;

/// Draws everything.
pub(super) fn draw(state: &mut State, frame: &mut Frame<'_>) {
    // In a low terminal the list comes first: the outcomes, the keys, the tiers and the names of the lists
    // give way, in this order.
    let Rect { height, width, .. } = frame.area();
    let line = |least: u16| Constraint::Length(u16::from(height >= least));
    let outcomes = lines_of(&outcomes(&state.snapshot), width);
    let results = if height >= OUTCOMES_HEIGHT_MIN { outcomes.len() as u16 } else { u16::from(height >= 9) };
    let [top, gauges, results, tabs, body, keys] = Layout::vertical([
        line(4),
        line(6),
        Constraint::Length(results),
        line(5),
        Constraint::Fill(1),
        line(7),
    ])
    .areas(frame.area());
    frame.render_widget(title(state, width), top);
    draw_tiers(&state.snapshot, frame, gauges);
    frame.render_widget(Paragraph::new(Text::from_iter(outcomes)).dim(), results);
    let titles = TABS.iter().enumerate().map(|(at, it)| format!("{} {}", at + 1, it.title));
    frame.render_widget(Tabs::new(titles).select(state.tab).padding(" ", " ").divider(""), tabs);
    if state.is_help {
        frame.render_widget(
            Paragraph::new(Text::from_iter(HELP)).block(Block::bordered().title("keys")),
            body,
        );
    } else if state.opened.is_some() {
        draw_opened(state, frame, body);
    } else {
        draw_table(state, frame, body);
    }
    let [.., fewest] = KEYS;
    let shown = KEYS.into_iter().find(|it| it.chars().count() <= usize::from(width)).unwrap_or(fewest);
    frame.render_widget(Paragraph::new(shown).dim(), keys);
}

/// The state, and as many facts as fit.
fn title(state: &State, width: u16) -> Paragraph<'static> {
    let it = &state.snapshot;
    let is = |name: &str| it[name].as_bool().unwrap_or_default();
    let (word, style) = match (&state.problem, is("leads"), is("ready")) {
        (Some(problem), ..) => (show::key(problem.as_bytes()), Style::new().red()),
        (None, false, _) => ("stands by".to_owned(), Style::new().yellow()),
        (None, _, false) => ("waiting for members".to_owned(), Style::new().yellow()),
        (None, true, true) => ("ready".to_owned(), Style::new().green()),
    };
    let up = std::time::Duration::from_secs(number(it, "uptime_seconds"));
    let facts = [
        format!("  epoch {}", number(it, "epoch")),
        format!("  up {}", humantime::format_duration(up)),
        format!("  {}", Count(number(it, "clients"), "client")),
        format!("  {} waiting", Count(number(it, "operations_waiting"), "operation")),
        format!("  version {}", text(it, "version")),
    ];
    let mut left = usize::from(width).saturating_sub("tiffin ".len() + word.chars().count());
    let facts = facts.into_iter().take_while(|it| {
        let fits = it.chars().count() <= left;
        left = left.saturating_sub(it.chars().count());
        fits
    });
    let facts: String = facts.collect();
    let spans = vec![Span::from("tiffin ").bold(), Span::styled(word, style), Span::from(facts)];
    Paragraph::new(Line::from(spans))
}

/// Where lookups found objects, what became of promoted ones, and what was evicted, since the master started.
fn outcomes(snapshot: &Value) -> [String; 3] {
    let [lookups, prefetch, evictions] = ["lookups", "prefetch", "evictions"].map(|it| &snapshot[it]);
    let causes = evictions["causes"].as_array().into_iter().flatten();
    let evicted: u64 = causes.map(|it| number(it, "objects")).sum();
    let found = format!(
        "lookups {}: memory {}, disk {}, not found {}",
        number(lookups, "total"),
        number(lookups, "memory"),
        number(lookups, "disk"),
        number(lookups, "missed"),
    );
    let promoted = format!(
        "promoted {}: used {}, unused {}, late {}",
        number(prefetch, "promoted"),
        number(prefetch, "used"),
        number(prefetch, "unused"),
        number(prefetch, "late"),
    );
    [found, promoted, format!("evicted {evicted}, unread {}", number(evictions, "unread"))]
}

/// Texts side by side, on as few lines as this width allows.
fn lines_of(texts: &[String], width: u16) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for text in texts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + text.chars().count() <= usize::from(width) => {
                line.push_str("   ");
                line.push_str(text);
            }
            _ => lines.push(text.clone()),
        }
    }
    lines
}

fn draw_tiers(snapshot: &Value, frame: &mut Frame<'_>, area: Rect) {
    let tiers: Vec<_> = snapshot["tiers"].as_array().into_iter().flatten().collect();
    let shown: Vec<_> =
        tiers.iter().filter(|it| text(it, "tier") == "memory" || number(it, "capacity") > 0).collect();
    let areas = Layout::horizontal(vec![Constraint::Fill(1); shown.len().max(1)]).spacing(1).split(area);
    for (it, area) in shown.into_iter().zip(areas.iter()) {
        let (used, capacity) = (number(it, "used"), number(it, "capacity"));
        let short = format!("{} {}", text(it, "tier"), percent(used, capacity));
        let long = format!("{short} ({} of {})", show::size(used), show::size(capacity));
        let label = if long.chars().count() <= usize::from(area.width) { long } else { short };
        let ratio = (used as f64 / capacity.max(1) as f64).clamp(0.0, 1.0);
        frame.render_widget(
            Gauge::default().ratio(ratio).label(label).gauge_style(Style::new().blue()),
            *area,
        );
    }
}

fn draw_table(state: &mut State, frame: &mut Frame<'_>, area: Rect) {
    let list = state.list();
    let Some(tab) = TABS.get(state.tab) else { return };
    let lines = u16::from(list.more > 0 && area.height > 2);
    let [area, last] = Layout::vertical([Constraint::Fill(1), Constraint::Length(lines)]).areas(area);
    frame.render_widget(Paragraph::new(format!("and {} more", list.more)).dim(), last);
    let columns = columns_that_fit(tab, area.width);
    let (sorted, is_reversed) = state.order.get(state.tab).copied().unwrap_or_default();
    let head = tab.columns.iter().take(columns).enumerate().map(|(at, name)| {
        let mark = if at != sorted {
            ""
        } else if is_reversed {
            " ▼"
        } else {
            " ▲"
        };
        Cell::from(Text::from(format!("{name}{mark}")).alignment(alignment(tab, at)))
    });
    let rows = list.rows.iter().map(|row| {
        let cells = row.cells.iter().take(columns).enumerate();
        let cells =
            cells.map(|(at, it)| Cell::from(Text::from(it.text.clone()).alignment(alignment(tab, at))));
        Row::new(cells).style(if row.is_bad { Style::new().yellow() } else { Style::new() })
    });
    // The name takes what the others leave: a number that is cut would be another number.
    let widths = tab.columns.iter().take(columns).enumerate().map(|(at, name)| match width(at, name) {
        None => Constraint::Fill(1),
        Some(width) => Constraint::Length(width),
    });
    let table = Table::new(rows, widths)
        .header(Row::new(head).bold())
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    if list.rows.is_empty() {
        frame.render_widget(Paragraph::new("none").dim(), area);
    } else {
        frame.render_stateful_widget(table, area, &mut state.table);
    }
}

/// The width of a column; the first takes what the others leave.
fn width(column: usize, name: &str) -> Option<u16> {
    Some(match (column, name) {
        (0, _) => return None,
        (_, "state" | "path") => 16,
        (_, "quota") => 19,
        (_, "tier" | "by" | "fill") => 8,
        (_, name) => (name.len() as u16 + MARK_WIDTH).max(NUMBER_WIDTH_MIN),
    })
}

/// The number of columns, from the left, that can be read in a terminal of this width; at least the first.
fn columns_that_fit(tab: &rows::Tab, terminal: u16) -> usize {
    let name_width = (terminal / 5).clamp(NAME_WIDTH_MIN, NAME_WIDTH_MAX);
    let mut left = terminal;
    let fits = |(at, name): &(usize, &&str)| {
        // One more for the space before a column.
        let needed = width(*at, name).map_or(name_width, |it| it + 1);
        let fits = needed <= left;
        left = left.saturating_sub(needed);
        fits
    };
    tab.columns.iter().enumerate().take_while(fits).count().max(1)
}

/// Names and states are on the left, numbers on the right.
fn alignment(tab: &rows::Tab, column: usize) -> Alignment {
    let is_text = column == 0
        || matches!(tab.columns.get(column).copied(), Some("tier" | "state" | "namespace" | "by" | "path"));
    if is_text { Alignment::Left } else { Alignment::Right }
}

fn draw_opened(state: &State, frame: &mut Frame<'_>, area: Rect) {
    let list = state.list();
    let Some(row) = list.rows.get(state.selected()) else { return };
    let title = row.cells.first().map(|it| it.text.clone()).unwrap_or_default();
    let block = Block::bordered().title(title);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let lines = row.inner.len().max(1) as u16;
    let [text, chart] = Layout::vertical([Constraint::Min(lines), Constraint::Fill(1)]).areas(inside);
    let shown = Text::from_iter(row.inner.iter().map(|it| Line::from(it.clone())));
    if row.history.is_empty() {
        frame.render_widget(Paragraph::new(shown).wrap(Wrap { trim: false }), inside);
    } else {
        frame.render_widget(Paragraph::new(shown), text);
        let newest = row.history.len().saturating_sub(usize::from(chart.width));
        let data = row.history.get(newest..).unwrap_or_default();
        frame.render_widget(Sparkline::default().data(data), chart);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use serde_json::json;

    use super::super::state::Flow;
    use super::*;

    fn snapshot() -> Value {
        json!({
            "version": "1", "epoch": 3, "uptime_seconds": 61, "clients": 2, "leads": true, "ready": true,
            "operations_waiting": 0,
            "tiers": [
                {"tier": "memory", "capacity": 1 << 30, "used": 1 << 29},
                {"tier": "disk", "capacity": 0},
            ],
            "lookups": {"total": 9, "memory": 5, "disk": 3, "missed": 1},
            "prefetch": {"promoted": 4, "used": 2, "unused": 1, "late": 6},
            "evictions": {
                "causes": [{"cause": "memory", "objects": 7}, {"cause": "quota", "objects": 1}], "unread": 2,
            },
            "nodes": [
                {"name": "alpha", "tier": "memory", "state": "ok", "used": 10, "capacity": 100, "objects": 7,
                 "transfers": [
                    {"operation": "read", "path": "tcp", "count": 5, "bytes": 2048, "p50_us": 20},
                 ]},
                {"name": "beta\u{1b}[31m", "tier": "disk", "state": "not reachable", "used": 90,
                 "capacity": 100, "objects": 1},
            ],
            "namespaces": [{"name": "default", "objects": 4, "used": 512, "quota": 1024, "waiting": 1,
                            "owners": [{"owner": "run-7", "objects": 2, "bytes": 100}]}],
            "streams": [{"name": "s", "namespace": "default", "samples": 3, "blocked": true,
                         "groups": [{"group": "g", "lag": 2, "leased": 1, "consumers": 1}]}],
            "operations": [{"side": "client", "operation": "get", "path": "shared_memory", "per_second": 13.2,
                            "p50_us": 2, "p99_us": 2000, "total": 25, "rates": [1, 2, 30]}],
            "events": [{"number": 1, "kind": "member_lost", "level": "error", "subject": "gamma",
                        "text": "is lost, with 3 objects", "at_ms": 0, "count": 1}],
        })
    }

    fn screen(state: &mut State) -> String {
        screen_of(state, 110, 16)
    }

    fn screen_of(state: &mut State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(state, frame)).unwrap();
        terminal.backend().to_string()
    }

    fn press(state: &mut State, code: KeyCode) -> Flow {
        state.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn shows(state: &mut State, words: &[&str]) {
        let screen = screen(state);
        for word in words {
            assert!(screen.contains(word), "{word} is not in\n{screen}");
        }
    }

    #[test]
    fn lists_show_the_snapshot() {
        let mut state = State::new(snapshot());
        shows(
            &mut state,
            &["tiffin ready", "epoch 3", "up 1m 1s", "memory 50 %", "alpha", "not reachable", "90 %"],
        );
        shows(
            &mut state,
            &["lookups 9: memory 5, disk 3, not found 1", "promoted 4: used 2, unused 1, late 6"],
        );
        shows(&mut state, &["evicted 8, unread 2"]);
        assert!(!screen(&mut state).contains('\u{1b}'), "a name cannot control the terminal");
        shows(&mut state, &["beta\\u{1b}[31m"]);
        for (tab, words) in [
            ('2', vec!["default", "50 % of 1.0 KiB"]),
            ('3', vec!["puts wait"]),
            ('4', vec!["get", "shared memory", "13", "2 µs", "2 ms"]),
            ('5', vec!["member_lost", "gamma: is lost, with 3 objects"]),
        ] {
            press(&mut state, KeyCode::Char(tab));
            shows(&mut state, &words);
        }
    }

    #[test]
    fn keys_sort_and_open() {
        let mut state = State::new(snapshot());
        let first = |state: &State| state.list().rows[0].cells[0].text.clone();
        assert_eq!(first(&state), "alpha");
        press(&mut state, KeyCode::Char('r'));
        assert!(first(&state).starts_with("beta"));
        // By tier, state, then fill, from the largest.
        (0..3).for_each(|_| _ = press(&mut state, KeyCode::Char('s')));
        assert!(first(&state).starts_with("beta"));
        press(&mut state, KeyCode::Char('r'));
        assert_eq!(first(&state), "alpha");
        press(&mut state, KeyCode::Enter);
        shows(&mut state, &["read through tcp: 5 transfers, 2.0 KiB, p50 20 µs, p99 -"]);
        assert_eq!(press(&mut state, KeyCode::Esc), Flow::On, "it goes back first");
        press(&mut state, KeyCode::Tab);
        press(&mut state, KeyCode::Enter);
        shows(&mut state, &["pinned by run-7: 2 objects, 100 B"]);
        press(&mut state, KeyCode::Char('3'));
        press(&mut state, KeyCode::Enter);
        shows(&mut state, &["group g: lag 2, leased 1, 1 consumer"]);
        press(&mut state, KeyCode::Char('4'));
        press(&mut state, KeyCode::Enter);
        shows(&mut state, &["rates of the last five minutes", "█"]);
        press(&mut state, KeyCode::Char('?'));
        shows(&mut state, &["sort by the next column"]);
    }

    #[test]
    fn small_terminal_shows_what_fits() {
        let mut state = State::new(snapshot());
        for (width, height, shown, hidden) in [
            (40, 10, vec!["alpha", "memory", "not reachable", "tiffin ready"], vec!["capacity"]),
            (40, 8, vec!["alpha", "memory 50 %", "quit"], vec!["lookups"]),
            (40, 4, vec!["alpha", "tiffin ready"], vec!["quit"]),
            (20, 5, vec!["alpha", "1 nodes"], vec!["quit", "50 %", "state"]),
            (12, 2, vec!["alpha"], vec!["tiffin"]),
        ] {
            let screen = screen_of(&mut state, width, height);
            for word in shown {
                assert!(screen.contains(word), "{word} is not in\n{screen}");
            }
            for word in hidden {
                assert!(!screen.contains(word), "{word} is in\n{screen}");
            }
        }
    }

    #[test]
    fn no_number_and_no_title_is_cut() {
        // It is shown as `1023.9 MiB`, which no size is longer than.
        const LONG: u64 = 1_073_637_000;
        let wide = json!({
            "nodes": [{"name": "n".repeat(40), "tier": "memory", "state": "not reachable", "used": LONG,
                       "in_use": LONG, "capacity": LONG, "in_view": LONG, "objects": 1_234_567_890}],
            "namespaces": [{"name": "n", "objects": 1_234_567_890, "bytes": LONG, "used": LONG,
                            "quota": LONG, "pinned_bytes": LONG, "samples": 12345, "waiting": 12345}],
            "operations": [{"operation": "get", "side": "client", "path": "shared_memory",
                            "per_second": 12345, "bytes_per_second": LONG, "total": 1_234_567_890}],
        });
        for (tab, width) in
            [0, 1, 3].into_iter().flat_map(|tab| (30..130).step_by(11).map(move |width| (tab, width)))
        {
            let mut state = State { tab, ..State::new(wide.clone()) };
            let shown = columns_that_fit(&TABS[tab], width);
            for _ in 0..TABS[tab].columns.len() {
                let screen = screen_of(&mut state, width, 15);
                let mut lines = screen.lines().skip_while(|it| !it.contains(" 1 nodes")).skip(1);
                let (head, row) = (lines.next().unwrap(), lines.next().unwrap());
                let list = state.list();
                let texts = || list.rows[0].cells[1..shown].iter().map(|it| &it.text);
                for text in texts() {
                    let wanted = texts().filter(|it| *it == text).count();
                    assert!(row.matches(text).count() >= wanted, "{width}: {text} is cut\n{screen}");
                }
                for title in &TABS[tab].columns[..shown] {
                    assert!(head.contains(title), "{width}: {title} is cut\n{screen}");
                }
                press(&mut state, KeyCode::Char('s'));
            }
        }
    }

    #[test]
    fn outcomes_and_keys_fit_into_a_small_terminal() {
        let mut state = State::new(snapshot());
        for width in [60, 80, 100] {
            let screen = screen_of(&mut state, width, 15);
            for text in ["not found 1", "unused 1, late 6", "evicted 8, unread 2", "? help", "2 clients "] {
                assert!(screen.contains(text), "{width}: {text} is not in\n{screen}");
            }
        }
    }

    #[test]
    fn opened_row_stays_open_while_the_order_changes() {
        let node = |name: &str, objects: u64| json!({"name": name, "tier": "memory", "objects": objects});
        let mut state = State::new(json!({"nodes": [node("a", 1), node("b", 2)]}));
        // By objects, from the most.
        (0..7).for_each(|_| _ = press(&mut state, KeyCode::Char('s')));
        press(&mut state, KeyCode::Enter);
        shows(&mut state, &["┌b─"]);
        state.update(json!({"nodes": [node("a", 3), node("b", 2)]}));
        shows(&mut state, &["┌b─"]);
        press(&mut state, KeyCode::Up);
        shows(&mut state, &["┌a─"]);
        state.update(json!({"nodes": [node("b", 2)]}));
        assert!(state.opened.is_none(), "the node is gone");
    }

    #[test]
    fn no_size_of_the_terminal_is_too_small() {
        for tab in 0..TABS.len() {
            for (is_open, is_help) in [(false, false), (true, false), (false, true)] {
                let mut state = State { tab, is_help, ..State::new(snapshot()) };
                if is_open {
                    press(&mut state, KeyCode::Enter);
                }
                for width in (1..=9).chain([16, 24]) {
                    (1..=9).for_each(|height| _ = screen_of(&mut state, width, height));
                }
            }
        }
    }

    #[test]
    fn long_list_says_how_many_are_missing() {
        let named = |at: usize| json!({"name": format!("ns-{at:04}"), "used": 5000 - at});
        let namespaces: Vec<_> = (0..5000).map(named).collect();
        let more = json!({"nodes": 0, "namespaces": 1234});
        let mut state = State::new(json!({"namespaces": namespaces, "more": more}));
        press(&mut state, KeyCode::Char('2'));
        let screen = screen_of(&mut state, 40, 10);
        assert!(screen.contains("ns-0000") && screen.contains("and 1234 more"), "{screen}");
        press(&mut state, KeyCode::End);
        let screen = screen_of(&mut state, 40, 10);
        assert!(screen.contains("ns-4999") && !screen.contains("ns-0000"), "{screen}");
        press(&mut state, KeyCode::Char('1'));
        assert!(!screen_of(&mut state, 40, 10).contains("more"));
    }

    #[test]
    fn selection_stays_inside_the_list() {
        let mut state = State::new(snapshot());
        (0..5).for_each(|_| _ = press(&mut state, KeyCode::Down));
        assert_eq!(state.selected(), 1);
        state.update(json!({"nodes": []}));
        assert_eq!(state.selected(), 0);
        press(&mut state, KeyCode::Enter);
        shows(&mut state, &["none"]);
        state.lose("`a:1` did not answer".to_owned());
        shows(&mut state, &["`a:1` did not answer"]);
    }

    #[test]
    fn quit_keys_quit() {
        for code in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(press(&mut State::new(snapshot()), code), Flow::Quit);
        }
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(State::new(snapshot()).press(interrupt), Flow::Quit);
        assert_eq!(press(&mut State::new(json!({})), KeyCode::Down), Flow::On, "a snapshot may be empty");
    }
}
