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

/// What is imported, as `data.skills.config`, and by which name.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) path: String,
    pub(super) name: String,
    line: usize,
}

/// A file of rules.
#[derive(Debug)]
pub(super) struct Sheet<'b> {
    pub(super) module: &'b Module,
    /// `skills.custom`
    pub(super) package: String,
    pub(super) imports: Vec<Import>,
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

/// All files, those that are served and the tests.
///
/// # Errors
/// Why the engine cannot read one.
pub(super) fn sheets(bundle: &Bundle) -> Result<(Vec<Sheet<'_>>, Vec<Sheet<'_>>), String> {
    let mut engine = engine::engine(bundle, true)?;
    let parsed = engine.get_modules();
    let mut sheets = Vec::new();
    // The engine has them in their order.
    for (module, parsed) in bundle.modules().iter().zip(parsed) {
        let imports = parsed.imports.iter().map(|import| {
            let path = import.refr.span().text();
            let last = path.rsplit('.').next().unwrap_or(path);
            let name = import.r#as.as_ref().map_or(last, |name| name.text());
            Import {
                path: path.to_owned(),
                name: name.to_owned(),
                line: import.refr.span().line as usize,
            }
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
    Ok(sheets
        .into_iter()
        .partition(|sheet| !sheet.module.is_test()))
}

/// An import has one meaning in a whole package: the engine, on the machine as in the interpreter, has one table of them for all
/// files of it, in which the last stands, and looks for a rule of that name before. In OPA each file has its own.
///
/// # Errors
/// Both places.
pub(super) fn one_meaning(sheets: &[Sheet<'_>]) -> Result<(), Vec<String>> {
    let mut first: BTreeMap<(&str, &str), (&str, String)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for sheet in sheets {
        let same = || sheets.iter().filter(|it| it.package == sheet.package);
        for import in &sheet.imports {
            let (path, name) = (import.path.as_str(), import.name.as_str());
            let place = sheet.place(import.line);
            let heads = || same().flat_map(|it| it.heads.iter().map(move |head| (it, head)));
            if let Some((other, head)) = heads().find(|(_, head)| head.root() == name) {
                wrong.push(format!(
                    "{place}: the import {name} has the name of a rule of this package ({}), which is what is taken: import it `as` something else",
                    other.place(head.line)
                ));
                continue;
            }
            let known = first.entry((&sheet.package, name));
            let (meant, at) = known.or_insert_with(|| (path, place.clone()));
            if *meant != path {
                wrong.push(format!(
                    "{place}: {name} is {path} here and {meant} in {at}, and all files of a package share their imports: import one of them `as` something else"
                ));
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong),
    }
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
        let (sheets, _) = sheets(&bundle).unwrap();
        let [sheet] = &sheets[..] else { panic!() };
        assert_eq!(sheet.package, "skills.custom");
        let imports = sheet.imports.iter();
        let imports: Vec<_> = imports.map(|it| (&it.path[..], &it.name[..])).collect();
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

    /// What a check says to files `a.rego` and `b.rego`.
    fn tried(texts: &[&str], check: fn(&[Sheet<'_>]) -> Result<(), Vec<String>>) -> Vec<String> {
        let mut files = Files::default();
        for (name, text) in ["a", "b"].iter().zip(texts) {
            let text = text.as_bytes().to_vec();
            files.add(format!("{name}.rego"), text).unwrap();
        }
        let bundle = Bundle::new(&files, "policies").unwrap();
        let (served, _) = sheets(&bundle).unwrap();
        check(&served).err().unwrap_or_default()
    }

    #[test]
    fn a_rule_has_one_default() {
        let tried = |texts: &[&str]| tried(texts, one_default);
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

    /// By what the engine takes, a list of another file would be asked in place of the own.
    #[test]
    fn an_import_has_one_meaning() {
        let tried = |texts: &[&str]| tried(texts, one_meaning);
        let people =
            "package a\n\nimport data.people.blocked\n\ndeny contains 1 if input.x in blocked\n";
        let skills = "package a\n\nimport data.skills.blocked as blocked\n\ndeny contains 2 if input.y in blocked\n";
        assert_eq!(
            tried(&[people, skills]),
            [
                "policies/b.rego:3: blocked is data.skills.blocked here and data.people.blocked in policies/a.rego:3, and all files of a package share their imports: import one of them `as` something else"
            ]
        );
        assert_eq!(
            tried(&[people, "package a\n\nblocked := {1}\n"]),
            [
                "policies/a.rego:3: the import blocked has the name of a rule of this package (policies/b.rego:3), which is what is taken: import it `as` something else"
            ]
        );
        let none: Vec<String> = vec![];
        assert_eq!(tried(&[people, people]), none);
        assert_eq!(
            tried(&[people, &skills.replace("package a", "package b")]),
            none
        );
        let other = skills.replace("as blocked", "as closed");
        assert_eq!(tried(&[people, &other]), none);
    }
}
