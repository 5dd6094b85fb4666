//! `tiffin top`: the state of a store, live in a terminal.
//!
//! [`state`] decides what a key does, [`draw`] shows it; both know neither terminal nor network.

mod draw;
mod rows;
mod state;

use std::io::{IsTerminal, stdin, stdout};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::master_pages::{MasterPages, PagesArgs};
use crate::signals::Signals;
use state::{Flow, State};

/// The time between two snapshots.
const REFRESH: Duration = Duration::from_secs(2);
/// How long the thread of the keyboard waits before it checks whether it is still wanted.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// The maximum number of keys that wait.
const KEYS_MAX: usize = 64;

/// Shows a store live in the terminal: nodes, namespaces, streams, operations, events. `?` lists the keys.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    #[command(flatten)]
    pages: PagesArgs,
}

/// Draws until the user quits.
pub(crate) async fn run(
    top: Top,
    context: &Context,
    console: &mut Console,
    mut signals: Signals,
) -> Result<i32, Failure> {
    let pages = MasterPages::new(top.pages, context)?;
    let first = pages.get("/api/tiffin/snapshot").await?;
    if console.json {
        console.value(&first)?;
        return Ok(STATUS_OK);
    }
    if !stdin().is_terminal() || !stdout().is_terminal() {
        let advice = "use `tiffin stat --watch`, or `tiffin top --json` for one snapshot";
        return Err(Failure::new("usage", "`tiffin top` needs a terminal").hint(advice));
    }
    let fail = |error: std::io::Error| Failure::new("system", format!("cannot use the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(fail)?;
    // The terminal is restored after a signal, too.
    let shown = tokio::select! {
        shown = show(&mut terminal, &pages, State::new(first)) => shown,
        () = signals.next() => Ok(()),
    };
    ratatui::try_restore().map_err(fail)?;
    shown.map_err(fail)?;
    Ok(STATUS_OK)
}

async fn show(
    terminal: &mut ratatui::DefaultTerminal,
    pages: &MasterPages,
    mut state: State,
) -> std::io::Result<()> {
    let mut keys = keyboard();
    let (sender, mut snapshots) = mpsc::channel(1);
    // It goes on while keys are handled: a master that does not answer delays none.
    let mut fetching = std::pin::pin!(fetch(pages, sender));
    loop {
        terminal.draw(|frame| draw::draw(&mut state, frame))?;
        tokio::select! {
            key = keys.recv() => match key {
                Some(Event::Key(key)) => {
                    if state.press(key) == Flow::Quit {
                        return Ok(());
                    }
                }
                Some(_) => {}
                // The terminal is gone.
                None => return Ok(()),
            },
            () = &mut fetching => return Ok(()),
            Some(snapshot) = snapshots.recv() => match snapshot {
                Ok(snapshot) => state.update(snapshot),
                Err(failure) => state.lose(failure.message),
            },
        }
    }
}

/// Sends a snapshot, or why there is none, every [`REFRESH`].
async fn fetch(pages: &MasterPages, snapshots: mpsc::Sender<Result<Value, Failure>>) {
    let mut ticks = interval(REFRESH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if snapshots.send(pages.get("/api/tiffin/snapshot").await).await.is_err() {
            return;
        }
    }
}

/// The keys that are pressed, until the result is dropped.
fn keyboard() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    tokio::task::spawn_blocking(move || {
        while !sender.is_closed() {
            match event::poll(KEY_WAIT) {
                Ok(false) => {}
                Ok(true) => match event::read() {
                    // A user who types faster than the screen is drawn waits for it.
                    Ok(event) => drop(sender.blocking_send(event)),
                    Err(_) => return,
                },
                Err(_) => return,
            }
        }
    });
    receiver
}
