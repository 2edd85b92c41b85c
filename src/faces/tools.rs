//! `GET /tools`: the eight tools in the forms that model APIs take (REQUIREMENTS L1, L2).

use http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::text_response;
use crate::methods::{Method, TABLE};
use crate::rescue::Refusal;
use crate::server::Body;

/// What the specification's description of `run_code` leaves out, and no call succeeds without.
const OF_CODE: &str = "The code is one Python module that defines `def main(args)`, and what that returns is the output.";

/// A form of tool definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// `{name, description, parameters}`: the specification's own.
    JsonSchema,
    /// OpenAI, Responses API.
    OpenAi,
    /// OpenAI, Chat Completions API.
    OpenAiChat,
    /// Anthropic, Messages API.
    Anthropic,
    /// Google, Gemini API.
    Gemini,
    /// Model Context Protocol, the result of `tools/list`.
    Mcp,
}

/// Every format with its name in the query.
const FORMATS: [(&str, Format); 6] = [
    ("json-schema", Format::JsonSchema),
    ("openai", Format::OpenAi),
    ("openai-chat", Format::OpenAiChat),
    ("anthropic", Format::Anthropic),
    ("gemini", Format::Gemini),
    ("mcp", Format::Mcp),
];

impl Format {
    /// By its name.
    ///
    /// # Errors
    /// A sentence that lists the names.
    pub(super) fn parse(name: &str) -> Result<Self, String> {
        FORMATS
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, format)| *format)
            .ok_or_else(|| {
                let names: Vec<&str> = FORMATS.iter().map(|(name, _)| *name).collect();
                format!(
                    "unknown format {:?}; there are {}",
                    crate::json::short(name),
                    names.join(", ")
                )
            })
    }

    /// The document: a list, Gemini's of one object, and an object for MCP. The order is the specification's, always the same: a model's
    /// prompt cache depends on it.
    pub(super) fn document(self) -> Value {
        let tools: Vec<Value> = TABLE
            .iter()
            .filter(|method| method.tool)
            .map(|method| self.tool(method))
            .collect();
        match self {
            Format::Gemini => json!([{ "functionDeclarations": tools }]),
            Format::Mcp => json!({ "tools": tools }),
            _ => Value::Array(tools),
        }
    }

    fn tool(self, method: &Method) -> Value {
        let (name, mut parameters) = (method.name, method.params_schema());
        let description = match (self, name) {
            // The specification's own form has its words alone.
            (
                Format::OpenAi
                | Format::OpenAiChat
                | Format::Anthropic
                | Format::Gemini
                | Format::Mcp,
                "run_code",
            ) => {
                format!("{} {OF_CODE}", method.description)
            }
            _ => method.description.to_owned(),
        };
        match self {
            Format::JsonSchema => {
                json!({ "name": name, "description": description, "parameters": parameters })
            }
            // `strict` would close every object and require every property: wrong for free-form `args`.
            Format::OpenAi => {
                json!({ "type": "function", "name": name, "description": description, "parameters": parameters, "strict": false })
            }
            Format::OpenAiChat => {
                json!({ "type": "function", "function": { "name": name, "description": description, "parameters": parameters, "strict": false } })
            }
            Format::Anthropic => {
                json!({ "name": name, "description": description, "input_schema": parameters })
            }
            Format::Gemini => {
                // Gemini fills an object of which nothing is said with nothing.
                let args = parameters.pointer_mut("/properties/args");
                if let Some(args) = args.and_then(Value::as_object_mut) {
                    args.insert("additionalProperties".into(), true.into());
                }
                json!({ "name": name, "description": description, "parametersJsonSchema": parameters })
            }
            Format::Mcp => {
                json!({
                    "name": name, "description": description, "inputSchema": parameters,
                    "outputSchema": method.result_schema(), "annotations": annotations(name),
                })
            }
        }
    }
}

/// What a client of MCP may do without asking its user. By default it takes a tool for one that destroys, and reaches anywhere.
fn annotations(name: &str) -> Value {
    match name {
        "execute_skill" | "run_code" => json!({ "readOnlyHint": false }),
        "create_blob" => {
            json!({ "readOnlyHint": false, "destructiveHint": false, "openWorldHint": false })
        }
        _ => json!({ "readOnlyHint": true, "openWorldHint": false }),
    }
}

pub(super) fn answer(request: &Request<Body>) -> Result<Response<Body>, Refusal> {
    let query = request.uri().query().unwrap_or("");
    let mut format = Format::JsonSchema;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some(("format", name)) = pair.split_once('=') else {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "bad_request",
                "the query takes format=... only",
            ));
        };
        format = Format::parse(name)
            .map_err(|message| Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message))?;
    }
    let text = format.document().to_string();
    let tag = format!("\"{}\"", hex::encode(&Sha256::digest(&text)[..12]));
    let known = request
        .headers()
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .any(|value| value.as_bytes() == tag.as_bytes());
    let mut response = if known {
        text_response("application/json", String::new())
    } else {
        text_response("application/json", text)
    };
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("private"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::{FORMATS, Format};

    #[test]
    fn every_format_has_the_eight_tools_in_order() {
        let names = [
            "list_skills",
            "describe_skill",
            "read_skill_file",
            "execute_skill",
            "run_code",
            "create_blob",
            "read_blob",
            "load_skills_protocol_guide",
        ];
        for (name, format) in FORMATS {
            let document = Format::parse(name).unwrap().document();
            let list = match format {
                Format::Gemini => &document[0]["functionDeclarations"],
                Format::Mcp => &document["tools"],
                _ => &document,
            };
            let found: Vec<&str> = list
                .as_array()
                .unwrap()
                .iter()
                .map(|tool| {
                    tool["name"]
                        .as_str()
                        .or(tool["function"]["name"].as_str())
                        .unwrap()
                })
                .collect();
            assert_eq!(found, names, "{name}");
            assert!(!document.to_string().contains("create_skill"));
        }
        assert!(Format::parse("xml").unwrap_err().contains("openai-chat"));
    }

    #[test]
    fn a_model_is_told_what_the_specification_leaves_out() {
        for (name, format) in FORMATS {
            let text = format.document().to_string();
            let is_own = format == Format::JsonSchema;
            assert_eq!(text.contains("`def main(args)`"), !is_own, "{name}");
            let says_free = text.contains("\"additionalProperties\":true");
            assert_eq!(says_free, format == Format::Gemini, "{name}");
        }
        let tools = Format::Mcp.document();
        let hint = |at: usize, hint: &str| tools["tools"][at]["annotations"][hint].as_bool();
        let reads: Vec<_> = (0..8).map(|at| hint(at, "readOnlyHint").unwrap()).collect();
        assert_eq!(reads, [true, true, true, false, false, false, true, true]);
        // What a client takes for granted of the two that run code: they may destroy, and reach anywhere.
        for at in [3, 4] {
            assert_eq!(
                (hint(at, "destructiveHint"), hint(at, "openWorldHint")),
                (None, None)
            );
        }
    }
}
