//! Files of rules as the engine reads them: their words, and the heads of their rules. For what is no mistake to the engine.

use std::borrow::Cow;
use std::collections::BTreeMap;

use regorus::Source;
use regorus::unstable::{Lexer, Rule, RuleHead, TokenKind};

use super::bundle::{Bundle, Module};
use super::engine;
use super::suite::word;

/// What a word is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name, or a word of the language.
    Name,
    /// A string, without its quotes and escapes.
    Text,
    /// The same between backquotes, which may be in several lines.
    Raw,
    /// Anything else.
    Other,
}

/// One word; comments are none.
#[derive(Debug)]
pub(super) struct Word<'t> {
    pub(super) kind: Kind,
    pub(super) text: Cow<'t, str>,
    pub(super) line: usize,
    /// Bytes of the file before it, and up to its end; of a string without its quotes.
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Word<'_> {
    pub(super) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Name | Kind::Other) && self.text == text
    }
}

/// The words of a file.
///
/// # Errors
/// Why the engine cannot read it.
pub(super) fn words(module: &Module) -> Result<Vec<Word<'_>>, String> {
    let text = &module.text;
    let source = Source::from_contents(module.path.clone(), text.clone());
    let source = source.map_err(|error| error.to_string())?;
    let mut lexer = Lexer::new(&source);
    let mut words = Vec::new();
    loop {
        let token = lexer.next_token().map_err(|error| error.to_string())?;
        let kind = match token.0 {
            TokenKind::Eof => return Ok(words),
            TokenKind::Ident => Kind::Name,
            TokenKind::String => Kind::Text,
            TokenKind::RawString => Kind::Raw,
            TokenKind::Symbol | TokenKind::Number => Kind::Other,
        };
        let (start, end) = (token.1.start as usize, token.1.end as usize);
        let written = text.get(start..end).unwrap_or_default();
        let plain = |_| serde_json::from_str(&format!("\"{written}\"")).ok();
        let escaped = (kind == Kind::Text && written.contains('\\')).then_some(());
        words.push(Word {
            kind,
            text: match escaped.and_then(plain) {
                Some(plain) => Cow::Owned(plain),
                None => Cow::Borrowed(written),
            },
            line: token.1.line as usize,
            start,
            end,
        });
    }
}

/// A rule's head.
#[derive(Debug)]
pub(super) struct Head {
    /// As it is written: `deny`, `names.a`.
    pub(super) name: String,
    pub(super) line: usize,
    /// Bytes of the file before the rule, and before its name.
    pub(super) start: usize,
    pub(super) at: usize,
    pub(super) is_default: bool,
}

impl Head {
    /// `names` of `names.a`.
    pub(super) fn root(&self) -> &str {
        word(&self.name)
    }
}

/// A file that is served.
#[derive(Debug)]
pub(super) struct Sheet<'b> {
    pub(super) module: &'b Module,
    /// `skills.custom`
    pub(super) package: String,
    /// What is imported, as `data.skills.config`, and by which name.
    pub(super) imports: Vec<(String, String)>,
    pub(super) heads: Vec<Head>,
    pub(super) words: Vec<Word<'b>>,
}

impl Sheet<'_> {
    /// The rule in which something is written.
    pub(super) fn rule_at(&self, start: usize) -> Option<&Head> {
        self.heads.iter().rfind(|head| head.start <= start)
    }

    /// `policies/skills/custom/a.rego:3`
    pub(super) fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.module.path)
    }
}

/// All files that are served.
///
/// # Errors
/// Why the engine cannot read one.
pub(super) fn sheets(bundle: &Bundle) -> Result<Vec<Sheet<'_>>, String> {
    let mut engine = engine::engine(bundle, false)?;
    let parsed = engine.get_modules();
    let served = bundle.modules().iter().filter(|module| !module.is_test());
    let mut sheets = Vec::new();
    // The engine has them in their order.
    for (module, parsed) in served.zip(parsed) {
        let imports = parsed.imports.iter().map(|import| {
            let path = import.refr.span().text();
            let last = path.rsplit('.').next().unwrap_or(path);
            let name = import.r#as.as_ref().map_or(last, |name| name.text());
            (path.to_owned(), name.to_owned())
        });
        let heads = parsed.policy.iter().map(|rule| {
            let (refr, is_default) = match rule.as_ref() {
                Rule::Default { refr, .. } => (refr, true),
                Rule::Spec { head, .. } => match head {
                    RuleHead::Compr { refr, .. }
                    | RuleHead::Set { refr, .. }
                    | RuleHead::Func { refr, .. } => (refr, false),
                },
            };
            Head {
                name: refr.span().text().to_owned(),
                line: refr.span().line as usize,
                start: rule.span().start as usize,
                at: refr.span().start as usize,
                is_default,
            }
        });
        sheets.push(Sheet {
            module,
            package: parsed.package.refr.span().text().to_owned(),
            imports: imports.collect(),
            heads: heads.collect(),
            words: words(module)?,
        });
    }
    Ok(sheets)
}

/// Two defaults of one rule: the engine takes the last, in whatever file that is, and OPA none.
///
/// # Errors
/// Both places.
pub(super) fn one_default(sheets: &[Sheet<'_>]) -> Result<(), Vec<String>> {
    let mut first = BTreeMap::new();
    let mut wrong = Vec::new();
    for sheet in sheets {
        for head in sheet.heads.iter().filter(|head| head.is_default) {
            let place = sheet.place(head.line);
            let name = (&sheet.package, &head.name);
            match first.get(&name) {
                Some(first) => wrong.push(format!(
                    "{place}: a second default of {}, whose first is at {first}: leave one",
                    head.name
                )),
                None => {
                    first.insert(name, place);
                }
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::bundle::Files;

    #[test]
    fn what_is_read_of_a_file() {
        let text = "# mine\n\tpackage\tskills.custom # \"not\"\nimport data.skills.config as cfg\nimport data.skills.lib\n\ndefault names.a := \"\\u0025\"\n\nnames.b := `\n` if cfg.x % 2 == 0\n\ndeny contains x if lib.f(x)\n\nf(x) := 1 if x\n";
        let mut files = Files::default();
        files.add("a.rego".into(), text.into()).unwrap();
        let bundle = Bundle::new(&files, "policies").unwrap();
        let sheets = sheets(&bundle).unwrap();
        let [sheet] = &sheets[..] else { panic!() };
        assert_eq!(sheet.package, "skills.custom");
        let imports = sheet.imports.iter();
        let imports: Vec<_> = imports.map(|(path, name)| (&path[..], &name[..])).collect();
        assert_eq!(
            imports,
            [("data.skills.config", "cfg"), ("data.skills.lib", "lib")]
        );
        let heads = sheet.heads.iter();
        let heads: Vec<_> = heads
            .map(|it| (&it.name[..], it.line, it.is_default))
            .collect();
        assert_eq!(
            heads,
            [
                ("names.a", 6, true),
                ("names.b", 8, false),
                ("deny", 11, false),
                ("f", 13, false)
            ]
        );
        let texts = sheet.words.iter();
        let texts: Vec<_> = texts
            .filter(|it| matches!(it.kind, Kind::Text | Kind::Raw))
            .collect();
        assert_eq!((&*texts[0].text, texts[0].line), ("%", 6));
        assert_eq!((&*texts[1].text, texts[1].line), ("\n", 8));
        let percent = sheet.words.iter().find(|word| word.is("%")).unwrap();
        assert_eq!(percent.line, 9);
        assert_eq!(sheet.rule_at(percent.start).unwrap().root(), "names");
    }

    #[test]
    fn a_rule_has_one_default() {
        let tried = |texts: &[&str]| {
            let mut files = Files::default();
            for (name, text) in ["a", "b"].iter().zip(texts) {
                files
                    .add(format!("{name}.rego"), text.as_bytes().to_vec())
                    .unwrap();
            }
            let bundle = Bundle::new(&files, "policies").unwrap();
            one_default(&sheets(&bundle).unwrap())
                .err()
                .unwrap_or_default()
        };
        let one = "package a\n\ndefault x := 1\n";
        assert_eq!(
            tried(&["package a\n\ndefault x := 1\n\ndefault x := 2\n"]),
            [
                "policies/a.rego:5: a second default of x, whose first is at policies/a.rego:3: leave one"
            ]
        );
        assert_eq!(
            tried(&[one, one]),
            [
                "policies/b.rego:3: a second default of x, whose first is at policies/a.rego:3: leave one"
            ]
        );
        let none: Vec<String> = vec![];
        assert_eq!(tried(&[one, "package b\n\ndefault x := 1\n"]), none);
        let two = "package a\n\ndefault x.a := 1\n\ndefault x.b := 1\n\nx.a := 2 if input.b\n";
        assert_eq!(tried(&[two]), none);
    }
}
