//! Parses the syntax of nginx: words, `;`, blocks in braces and `include`. The depth of blocks, the number of
//! directives and the length of words are bounded.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::import::error::{ImportError, Result};
use crate::import::input::{Input, find_files};

/// The deepest nesting of blocks.
const DEPTH_MAX: usize = 32;
/// The longest chain of files that include one another.
const INCLUDES_MAX: usize = 16;
const DIRECTIVES_MAX: usize = 100_000;
/// Maximum number of bytes of one word.
const WORD_MAX: usize = 64 << 10;

/// One directive with its arguments, unquoted, and its block.
#[derive(Clone, Debug)]
pub struct Directive {
    pub name: String,
    pub args: Vec<String>,
    pub block: Option<Vec<Directive>>,
    pub file: Rc<str>,
    pub line: usize,
    /// The directory of the first file, where relative paths start.
    pub base: Rc<Path>,
    /// Variables in the arguments have been replaced by their values.
    pub is_expanded: bool,
}

#[cfg(test)]
impl Directive {
    /// Returns a directive for a test, without a block.
    pub fn written(name: &str, args: &[&str]) -> Directive {
        Directive {
            name: name.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            block: None,
            file: "".into(),
            line: 1,
            base: Path::new("/").into(),
            is_expanded: false,
        }
    }
}

impl Directive {
    /// Returns an argument, or an empty string if there are fewer.
    pub fn arg(&self, at: usize) -> &str {
        self.args.get(at).map_or("", String::as_str)
    }

    /// Returns the path in the first argument. As in nginx, a relative path starts at the directory of the first file.
    pub fn resolve_path(&self) -> PathBuf {
        self.base.join(self.arg(0))
    }

    /// Returns the path in the first argument if a file exists there.
    pub fn find_file(&self) -> Option<String> {
        let path = self.resolve_path();
        path.is_file().then(|| path.to_str().map(str::to_owned))?
    }

    /// Returns the directives of the block, or none.
    pub fn inner(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or(&[])
    }

    /// Creates an error at this directive.
    pub fn error(&self, message: impl Into<String>) -> ImportError {
        ImportError::new(&self.file, self.line, message)
    }
}

/// Parses `path` and the files that it includes. If an included file does not exist, its `include` directive stays.
pub fn parse_file(input: &mut Input, path: &Path) -> Result<Vec<Directive>> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let base = parent.canonicalize().unwrap_or_else(|_| parent.to_owned()).into();
    let mut reader = SyntaxReader { input, base, including: Vec::new(), directives: 0 };
    reader.read_file(path, 0)
}

struct SyntaxReader<'a> {
    input: &'a mut Input,
    /// The directory of the first file. Relative paths of `include` start there.
    base: Rc<Path>,
    /// The chain of files that the reader is inside of, the outermost first.
    including: Vec<PathBuf>,
    directives: usize,
}

impl SyntaxReader<'_> {
    fn read_file(&mut self, path: &Path, depth: usize) -> Result<Vec<Directive>> {
        let text = self.input.read_file(path)?;
        self.including.push(path.canonicalize().unwrap_or_else(|_| path.to_owned()));
        let mut words = Words { rest: text.chars().peekable(), file: path.display().to_string().into(), line: 1 };
        let directives = self.read_block(&mut words, None, depth)?;
        self.including.pop();
        Ok(directives)
    }

    /// Reads the directives up to the closing brace of the block that `opened` at this line, or to the end of the file.
    fn read_block(&mut self, words: &mut Words, opened: Option<usize>, depth: usize) -> Result<Vec<Directive>> {
        let mut directives = Vec::new();
        if depth > DEPTH_MAX {
            return Err(words.error(format!("blocks are nested more than {DEPTH_MAX} deep")));
        }
        loop {
            let (name, line) = match words.read_token()? {
                Token::Word(name) => (name, words.line),
                Token::Semicolon => return Err(words.error("unexpected `;`")),
                Token::Open => return Err(words.error("unexpected `{`")),
                Token::Close if opened.is_some() => return Ok(directives),
                Token::Close => return Err(words.error("unexpected `}`: no block is open")),
                Token::End => match opened {
                    Some(line) => {
                        return Err(words.error(format!("the block that starts in line {line} is not closed")));
                    }
                    None => return Ok(directives),
                },
            };
            self.directives += 1;
            if self.directives > DIRECTIVES_MAX {
                return Err(
                    words.error(format!("there are more than {DIRECTIVES_MAX} directives; import fewer files at once"))
                );
            }
            let mut directive = Directive {
                name,
                args: Vec::new(),
                block: None,
                file: words.file.clone(),
                line,
                base: self.base.clone(),
                is_expanded: false,
            };
            loop {
                match words.read_token()? {
                    Token::Word(word) => directive.args.push(word),
                    Token::Semicolon => break,
                    Token::Open if directive.name.ends_with("_by_lua_block") => {
                        words.skip_lua()?;
                        directive.block = Some(Vec::new());
                        break;
                    }
                    Token::Open => {
                        directive.block = Some(self.read_block(words, Some(line), depth + 1)?);
                        break;
                    }
                    Token::Close | Token::End => {
                        return Err(
                            directive.error(format!("`{}` has no `;` or block after it", shorten(&directive.name)))
                        );
                    }
                }
            }
            match directive.name == "include" && directive.args.len() == 1 && directive.block.is_none() {
                true => self.include_files(directive, depth, &mut directives)?,
                false => directives.push(directive),
            }
        }
    }

    fn include_files(&mut self, directive: Directive, depth: usize, found: &mut Vec<Directive>) -> Result<()> {
        let pattern = directive.arg(0);
        let files = find_files(&self.base.join(pattern));
        if files.is_empty() && !pattern.contains(['*', '?']) {
            found.push(directive);
            return Ok(());
        }
        for path in files {
            if self.including.contains(&path.canonicalize().unwrap_or_else(|_| path.clone())) {
                return Err(directive.error(format!("{} includes itself", path.display())));
            }
            if self.including.len() > INCLUDES_MAX {
                return Err(directive.error(format!("more than {INCLUDES_MAX} files include one another")));
            }
            found.extend(self.read_file(&path, depth)?);
        }
        Ok(())
    }
}

enum Token {
    Word(String),
    Semicolon,
    Open,
    Close,
    End,
}

struct Words<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    file: Rc<str>,
    line: usize,
}

impl Words<'_> {
    fn error(&self, message: impl Into<String>) -> ImportError {
        ImportError::new(&self.file, self.line, message)
    }

    fn take(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn read_token(&mut self) -> Result<Token> {
        loop {
            match self.rest.peek() {
                None => return Ok(Token::End),
                Some('#') => {
                    while self.rest.peek().is_some_and(|next| *next != '\n') {
                        self.take();
                    }
                }
                Some(next) if next.is_ascii_whitespace() => {
                    self.take();
                }
                Some(_) => break,
            }
        }
        match self.rest.peek() {
            Some(';') => self.read_single(Token::Semicolon),
            Some('{') => self.read_single(Token::Open),
            Some('}') => self.read_single(Token::Close),
            Some(quote @ ('"' | '\'')) => {
                let quote = *quote;
                self.read_quoted(quote)
            }
            _ => self.read_plain(),
        }
    }

    fn read_single(&mut self, token: Token) -> Result<Token> {
        self.take();
        Ok(token)
    }

    fn read_quoted(&mut self, quote: char) -> Result<Token> {
        let start = self.line;
        self.take();
        let mut word = String::new();
        loop {
            match self.take() {
                Some(next) if next == quote => break,
                Some('\\') => self.read_escaped(&mut word),
                Some(next) => word.push(next),
                None => {
                    return Err(ImportError::new(
                        &self.file,
                        start,
                        format!("the string that starts here has no closing {quote}"),
                    ));
                }
            }
            self.check_length(&word)?;
        }
        match self.rest.peek() {
            None | Some(';' | '{' | ')') => Ok(Token::Word(word)),
            Some(next) if next.is_ascii_whitespace() => Ok(Token::Word(word)),
            Some(_) => Err(self.error("a space or `;` must follow a quoted string")),
        }
    }

    /// Reads a word without quotes. The brace of `${name}` is part of the word; any other opening brace ends it.
    fn read_plain(&mut self) -> Result<Token> {
        let mut word = String::new();
        while let Some(next) = self.rest.peek().copied() {
            if next.is_ascii_whitespace() || next == ';' || next == '{' && !word.ends_with('$') {
                break;
            }
            self.take();
            match next {
                '\\' => self.read_escaped(&mut word),
                next => word.push(next),
            }
            self.check_length(&word)?;
        }
        Ok(Token::Word(word))
    }

    /// Reads the character after a backslash. nginx drops the backslash before quotes and backslashes only.
    fn read_escaped(&mut self, word: &mut String) {
        match self.take() {
            Some(next @ ('"' | '\'' | '\\')) => word.push(next),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(next) => word.extend(['\\', next]),
            None => word.push('\\'),
        }
    }

    fn check_length(&self, word: &str) -> Result<()> {
        match word.len() > WORD_MAX {
            true => Err(self.error(format!("a word is longer than {WORD_MAX} bytes"))),
            false => Ok(()),
        }
    }

    /// Skips a block of Lua up to its closing brace.
    fn skip_lua(&mut self) -> Result<()> {
        let start = self.line;
        let mut open = 1;
        while open > 0 {
            match self.take() {
                Some('{') => open += 1,
                Some('}') => open -= 1,
                Some('-') if self.rest.peek() == Some(&'-') => {
                    while self.rest.peek().is_some_and(|next| *next != '\n') {
                        self.take();
                    }
                }
                Some(quote @ ('"' | '\'')) => loop {
                    match self.take() {
                        Some('\\') => drop(self.take()),
                        Some(next) if next == quote || next == '\n' => break,
                        Some(_) => {}
                        None => break,
                    }
                },
                Some(_) => {}
                None => {
                    return Err(ImportError::new(&self.file, start, "the Lua block that starts here is not closed"));
                }
            }
        }
        Ok(())
    }
}

/// Shortens a text for a message and escapes its control characters.
pub fn shorten(text: &str) -> String {
    const SHORT_MAX: usize = 100;
    let mut short = String::new();
    for (at, next) in text.chars().enumerate() {
        match next {
            _ if at >= SHORT_MAX => {
                short.push('…');
                break;
            }
            '"' | '\'' | '\\' => short.push(next),
            next => short.extend(next.escape_debug()),
        }
    }
    short
}
