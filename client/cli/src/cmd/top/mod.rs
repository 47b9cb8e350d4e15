//! `evenkeel top`: the node, its jobs and its leases, live. `frame` draws; here the terminal is handled.

mod frame;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{cursor, execute, queue};
use evenkeel_client::{Client, Error, Job, Lease, LeasePhase, Node};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::text::cut;
use crate::{out, units};
use frame::{Line, Tone};

/// How often the keyboard is looked at.
const KEYS_EVERY: Duration = Duration::from_millis(50);
/// Where the width of the output is unknown.
const PLAIN_WIDTH: u16 = 100;
/// Leases that are asked for at each look; more would not fit on a screen, and cost the daemon time.
const LEASES_MAX: u32 = 200;

/// Nobody reads faster than this.
const LEAST_DELAY: Duration = Duration::from_millis(100);

/// Watch the node, its jobs and its leases live
///
/// Press q to quit. Where the output is no terminal, it is printed again and again instead; with
/// --output json one object a line: {"node", "jobs", "leases"} (leases: while they are no more than 200).
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
    leases: Vec<Lease>,
}

pub(crate) async fn run(globals: &Globals, args: TopArgs) -> Result<(), Failure> {
    if args.delay < LEAST_DELAY {
        return Err(Failure::usage(
            "a delay under 100 ms would keep the daemon busy with looking",
        ));
    }
    let client = globals.client()?;
    // The first look says at once if there is nobody to look at.
    let first = look(&client).await.doing("look at the node")?;
    let live = !globals.json() && out::is_terminal() && io::stdin().is_terminal();
    if live {
        let screen = Screen::open().doing("use the terminal")?;
        let watched = screen.watch(&client, &args, first).await;
        drop(screen);
        watched.doing("use the terminal")
    } else {
        plain(globals, &client, &args, first).await
    }
}

async fn look(client: &Client) -> Result<View, Error> {
    let node = client.node().await?;
    let leases = if node.live_leases <= LEASES_MAX {
        client.leases(None).await?
    } else {
        Vec::new()
    };
    let live = |lease: &Lease| lease.phase != LeasePhase::Ended;
    Ok(View {
        jobs: client.jobs(false).await?,
        leases: leases.into_iter().filter(live).collect(),
        node,
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
                out::text(line.text);
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
        let mut ends = Ends::listen()?;
        let (mut view, mut trouble) = (first, None);
        let mut left = args.iterations.unwrap_or(u64::MAX);
        let next = || async {
            tokio::time::sleep(args.delay).await;
            look(client).await
        };
        let mut under_way = Box::pin(next());
        loop {
            draw(&view, trouble.as_deref())?;
            // A look at a daemon that is away takes seconds; whoever wants to leave need not wait for it.
            tokio::select! {
                looked = &mut under_way => {
                    left = left.saturating_sub(1);
                    if left == 0 {
                        return Ok(());
                    }
                    under_way = Box::pin(next());
                    // A daemon that is away is a line on the screen, not the end: it comes back.
                    match looked {
                        Ok(new) => (view, trouble) = (new, None),
                        Err(error) => trouble = Some(error.to_string()),
                    }
                }
                pressed = pressed() => match pressed? {
                    Pressed::Quit => return Ok(()),
                    Pressed::Resized => {}
                },
                () = ends.next() => return Ok(()),
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing is left to be done if the terminal is gone.
        execute!(io::stdout(), cursor::Show, LeaveAlternateScreen).ok();
        disable_raw_mode().ok();
    }
}

fn draw(view: &View, trouble: Option<&str>) -> io::Result<()> {
    // Some terminals do not know their size and say 0.
    let (width, height) = match terminal::size()? {
        (0, _) | (_, 0) => (PLAIN_WIDTH, 24),
        size => size,
    };
    let mut lines = frame::draw(view, width.into());
    if let Some(trouble) = trouble {
        let text = cut(&format!("! as it was: {trouble}"), width.into());
        let tone = Tone::Bad;
        lines.insert(0, Line { text, tone });
    }
    // The last row is for the way out.
    let lines = frame::fit(lines, usize::from(height.saturating_sub(1)));
    let mut stdout = io::stdout().lock();
    for (row, line) in (0..height.saturating_sub(1)).zip(&lines) {
        // Cleared before, not after: a line that fills the row leaves the cursor on its last character.
        queue!(
            stdout,
            cursor::MoveTo(0, row),
            Clear(ClearType::CurrentLine)
        )?;
        show(&mut stdout, line)?;
    }
    let drawn = u16::try_from(lines.len()).unwrap_or(height);
    queue!(
        stdout,
        cursor::MoveTo(0, drawn),
        Clear(ClearType::FromCursorDown),
        cursor::MoveTo(0, height.saturating_sub(1)),
        Print(cut("q quits", width.into()))
    )?;
    stdout.flush()
}

/// A line in its colour; crossterm leaves colours out where NO_COLOR says so.
fn show(stdout: &mut impl io::Write, line: &Line) -> io::Result<()> {
    match line.tone {
        Tone::Plain => queue!(stdout, Print(&line.text)),
        Tone::Title => queue!(
            stdout,
            SetAttribute(Attribute::Bold),
            Print(&line.text),
            SetAttribute(Attribute::Reset)
        ),
        Tone::Bad => queue!(
            stdout,
            SetForegroundColor(Color::Red),
            Print(&line.text),
            ResetColor
        ),
    }
}

enum Pressed {
    Quit,
    Resized,
}

/// The next thing that somebody at the terminal does. Cancel-safe: what was read is returned at once.
async fn pressed() -> io::Result<Pressed> {
    loop {
        while event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if is_quit(&key) => return Ok(Pressed::Quit),
                Event::Resize(..) => return Ok(Pressed::Resized),
                _ => {}
            }
        }
        tokio::time::sleep(KEYS_EVERY).await;
    }
}

fn is_quit(key: &KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') => control,
        KeyCode::Char('q') | KeyCode::Esc => true,
        _ => false,
    }
}

/// The signals that end us: the terminal is put in order first.
struct Ends([Signal; 3]);

impl Ends {
    fn listen() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::interrupt())?,
        ]))
    }

    async fn next(&mut self) {
        let [terminate, hangup, interrupt] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}
