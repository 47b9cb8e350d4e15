//! `evenkeel top`: the node and its jobs, live.

mod frame;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;
use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use crossterm::terminal::{
    self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{cursor, execute, queue, style};
use evenkeel_client::{Client, Error, Job, Node};
use serde::Serialize;

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::{out, units};

/// How often the keyboard is looked at.
const KEYS_EVERY: Duration = Duration::from_millis(50);
/// Where the width of the output is unknown.
const PLAIN_WIDTH: u16 = 100;

/// Watch the node and its jobs live
///
/// Press q to quit. Where the output is no terminal, it is printed again and again instead; with
/// --output json one object a line: {"node", "jobs"}.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Time between two looks
    #[arg(long, short = 'd', value_parser = units::duration, default_value = "1s")]
    delay: Duration,
    /// Look so many times, then quit
    #[arg(long, short = 'n')]
    iterations: Option<u64>,
}

/// What is looked at.
#[derive(Serialize)]
pub(crate) struct View {
    node: Node,
    jobs: Vec<Job>,
}

pub(crate) async fn run(globals: &Globals, args: TopArgs) -> Result<(), Failure> {
    let client = globals.client()?;
    // The first look says at once if there is nobody to look at.
    let first = look(&client).await.doing("look at the node")?;
    let live = !globals.json() && out::is_terminal() && io::stdin().is_terminal();
    if live {
        let screen = Screen::open().doing("use the terminal")?;
        screen
            .watch(&client, &args, first)
            .await
            .doing("use the terminal")
    } else {
        plain(globals, &client, &args, first).await
    }
}

async fn look(client: &Client) -> Result<View, Error> {
    Ok(View {
        node: client.node().await?,
        jobs: client.jobs(false).await?,
    })
}

async fn plain(
    globals: &Globals,
    client: &Client,
    args: &TopArgs,
    mut view: View,
) -> Result<(), Failure> {
    let mut left = args.iterations.unwrap_or(u64::MAX);
    loop {
        if globals.json() {
            out::json_line(&view);
        } else {
            for line in frame::draw(&view, PLAIN_WIDTH.into()) {
                out::text(line);
            }
            out::text("");
        }
        left = left.saturating_sub(1);
        if left == 0 {
            return Ok(());
        }
        tokio::time::sleep(args.delay).await;
        view = look(client).await.doing("look at the node")?;
    }
}

/// The terminal's other screen; the first one comes back when this is dropped.
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        let screen = Self;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    async fn watch(&self, client: &Client, args: &TopArgs, first: View) -> io::Result<()> {
        let mut looked: Result<View, Error> = Ok(first);
        let mut left = args.iterations.unwrap_or(u64::MAX);
        loop {
            Self::draw(&looked)?;
            left = left.saturating_sub(1);
            if left == 0 || Self::quit_within(args.delay).await? {
                return Ok(());
            }
            // A daemon that is away is a line on the screen, not the end: it comes back.
            looked = look(client).await;
        }
    }

    fn draw(looked: &Result<View, Error>) -> io::Result<()> {
        // Some terminals do not know their size and say 0.
        let (width, height) = match terminal::size()? {
            (0, _) | (_, 0) => (PLAIN_WIDTH, 24),
            size => size,
        };
        let lines = match looked {
            Ok(view) => frame::draw(view, width.into()),
            Err(error) => vec![error.to_string(), "q quits".to_owned()],
        };
        let mut stdout = io::stdout().lock();
        queue!(stdout, cursor::MoveTo(0, 0))?;
        for line in lines.iter().take(usize::from(height.saturating_sub(1))) {
            let line: String = line.chars().take(width.into()).collect();
            queue!(
                stdout,
                style::Print(line),
                Clear(ClearType::UntilNewLine),
                cursor::MoveToNextLine(1)
            )?;
        }
        queue!(stdout, Clear(ClearType::FromCursorDown))?;
        stdout.flush()
    }

    /// Waits, and looks at the keyboard meanwhile.
    async fn quit_within(delay: Duration) -> io::Result<bool> {
        let until = tokio::time::Instant::now() + delay;
        while tokio::time::Instant::now() < until {
            while event::poll(Duration::ZERO)? {
                match event::read()? {
                    Event::Key(key) => {
                        let control_c = key.code == KeyCode::Char('c')
                            && key.modifiers.contains(KeyModifiers::CONTROL);
                        if control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                            return Ok(true);
                        }
                    }
                    // Draw again in the new size.
                    Event::Resize(..) => return Ok(false),
                    _ => {}
                }
            }
            tokio::time::sleep(KEYS_EVERY).await;
        }
        Ok(false)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing is left to be done if the terminal is gone.
        execute!(io::stdout(), cursor::Show, LeaveAlternateScreen).ok();
        disable_raw_mode().ok();
    }
}
