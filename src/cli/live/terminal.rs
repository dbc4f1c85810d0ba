//! Switches the terminal to a full-screen view and back, and reads keys. The terminal is restored when the view ends:
//! normally, by a panic, or by a signal.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};

/// The terminal while it shows a full-screen view.
pub struct FullScreen {
    saved: Arc<SavedTerminal>,
    /// Bytes of keys that were read together with an earlier key.
    input: RefCell<VecDeque<u8>>,
}

/// Restores the terminal, once.
pub struct SavedTerminal {
    modes: Termios,
    is_restored: AtomicBool,
    /// Held while a frame is written, so that nothing follows the restored screen.
    writing: Mutex<()>,
}

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressedKey {
    Up,
    Down,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C, or the end of the input.
    Interrupt,
    Char(char),
}

/// The other screen, no cursor, and no line breaks at the right edge.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The byte of Ctrl-D.
const END_OF_INPUT: u8 = 0x04;
/// The bytes of an escape sequence follow each other faster than this.
const ESCAPE_PAUSE: Duration = Duration::from_millis(30);
/// Size of a terminal that does not report its own.
const DEFAULT_SIZE: (usize, usize) = (80, 24);

impl FullScreen {
    /// Shows an empty screen, and lets each key be read at once.
    ///
    /// `restorer` gets what restores the terminal before anything changes, for a signal handler.
    pub fn enter(restorer: &OnceLock<Arc<SavedTerminal>>) -> io::Result<FullScreen> {
        let modes = tcgetattr(io::stdin())?;
        let mut raw = modes.clone();
        // Ctrl-C and Ctrl-Z become keys, so that neither leaves the terminal as it is now.
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        let terminal =
            Arc::new(SavedTerminal { modes, is_restored: AtomicBool::new(false), writing: Mutex::default() });
        let _ = restorer.set(terminal.clone());
        let screen = FullScreen { saved: terminal, input: RefCell::default() };
        screen.write_unless_restored(|| {
            tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
            write_at_once(ENTER)
        })?;
        Ok(screen)
    }

    /// Writes a frame at once.
    pub fn draw(&self, frame: &str) -> io::Result<()> {
        self.write_unless_restored(|| write_at_once(frame))
    }

    fn write_unless_restored(&self, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _writing = self.saved.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.saved.is_restored.load(Ordering::Relaxed) { Ok(()) } else { write() }
    }

    /// Waits for a key, no longer than `patience`.
    pub fn read_key(&self, patience: Duration) -> io::Result<Option<PressedKey>> {
        let Some(byte) = self.read_byte(patience)? else { return Ok(None) };
        Ok(match byte {
            0x1b => Some(self.read_escape()?),
            b'\r' | b'\n' => Some(PressedKey::Enter),
            0x7f | 0x08 => Some(PressedKey::Backspace),
            0x03 | END_OF_INPUT => Some(PressedKey::Interrupt),
            byte if byte.is_ascii_graphic() || byte == b' ' => Some(PressedKey::Char(char::from(byte))),
            _ => None,
        })
    }

    /// Reads the rest of an escape sequence. A lone escape is followed by nothing for a moment.
    fn read_escape(&self) -> io::Result<PressedKey> {
        let mut bytes = Vec::new();
        while bytes.len() < 8
            && let Some(byte) = self.read_byte(ESCAPE_PAUSE)?
        {
            bytes.push(byte);
            if bytes.len() > 1 && (0x40..0x7f).contains(&byte) {
                break;
            }
        }
        Ok(match bytes.as_slice() {
            b"[A" | b"OA" => PressedKey::Up,
            b"[B" | b"OB" => PressedKey::Down,
            _ => PressedKey::Escape,
        })
    }

    /// Waits for a byte of the input. The end of the input is a Ctrl-D.
    fn read_byte(&self, patience: Duration) -> io::Result<Option<u8>> {
        let mut input = self.input.borrow_mut();
        if input.is_empty() && is_readable(patience)? {
            let mut bytes = [0; 64];
            let count = rustix::io::read(io::stdin(), &mut bytes)?;
            input.extend(if count == 0 { &[END_OF_INPUT] } else { &bytes[..count] });
        }
        Ok(input.pop_front())
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        self.saved.restore();
    }
}

impl SavedTerminal {
    pub fn restore(&self) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_restored.swap(true, Ordering::Relaxed) {
            // The terminal may be gone.
            let _ = write_at_once(LEAVE);
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.modes);
        }
    }
}

fn write_at_once(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Waits until the input has a byte or an end.
fn is_readable(patience: Duration) -> io::Result<bool> {
    let input = io::stdin();
    let mut fds = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    let limit = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match poll(&mut fds, Some(&limit)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the columns and rows of the terminal.
pub fn terminal_size() -> (usize, usize) {
    let size = tcgetwinsize(io::stdout()).ok().map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    size.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(DEFAULT_SIZE)
}

/// Has SIGINT, SIGTERM and SIGHUP end the process with exit code 0, after `before`. Returns once they do. Without a
/// thread, the system ends the process.
pub fn exit_on_signal(before: impl FnOnce() + Send + 'static) {
    let (ready, is_ready) = sync_channel(1);
    let wait = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            let mut hangup = signal(SignalKind::hangup())?;
            let _ = ready.send(());
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            before();
            exit(0)
        })
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    if thread.spawn(move || -> io::Result<()> { wait() }).is_ok() {
        // An error means that the thread could not set the handlers.
        let _ = is_ready.recv();
    }
}
