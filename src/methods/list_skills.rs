//! `list_skills`: a plain, sorted listing; no search (REQUIREMENTS D1 to D3).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use skillgate_skill::name::NAME_BYTES_MAX;

use super::{Error, Method, Prepared, Rooms, Whole, read_params};
use crate::catalog::{Catalog, Listing, Page};
use crate::policy::Facts;
use crate::rpc::{Call, json_bytes};

/// Largest page.
const LIMIT_MAX: u32 = 1000;
/// Page size when a caller does not say (REQUIREMENTS D1).
const LIMIT_DEFAULT: u32 = 50;

pub(super) const METHOD: Method = Method {
    name: "list_skills",
    tool: true,
    description: "Enumerate available skills, optionally filtering by namespace. Results are deterministically sorted.",
    params: include_str!("schema/list_skills.json"),
    result: include_str!("schema/list_skills.result.json"),
    prepare,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    namespace: Option<String>,
    detail: Option<Detail>,
    limit: Option<Whole>,
    cursor: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Detail {
    Names,
    Summary,
}

fn prepare(rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move { listing(rooms.catalog.clone(), rooms.answer_bytes_max, call) })
}

/// The same for who has a catalog and no other room.
pub(crate) fn listing(
    catalog: Catalog,
    answer_bytes_max: u64,
    call: Call,
) -> Result<Prepared, Error> {
    let params: Params = read_params(&call.params, METHOD.params)?;
    let limit = match params.limit {
        Some(Whole(limit)) => u32::try_from(limit).unwrap_or(u32::MAX),
        None => LIMIT_DEFAULT,
    };
    if limit == 0 || limit > LIMIT_MAX {
        return Err(Error::params(
            "/limit",
            format!("limit must be 1 to {LIMIT_MAX}"),
        ));
    }
    let namespace = params.namespace.filter(|namespace| !namespace.is_empty());
    if namespace
        .as_ref()
        .is_some_and(|text| text.len() > NAME_BYTES_MAX)
    {
        let message =
            format!("namespace must be at most {NAME_BYTES_MAX} bytes, as names of skills are");
        return Err(Error::params("/namespace", message));
    }
    let detail = params.detail.unwrap_or(Detail::Names);
    let listing = Listing {
        namespace,
        limit,
        cursor: params.cursor.filter(|cursor| !cursor.is_empty()),
        with_tags: detail == Detail::Summary,
    };
    let facts = Facts::new(METHOD.name, call.caller.clone(), call.id)
        .with("namespace", listing.namespace.clone())
        .with(
            "detail",
            if listing.with_tags {
                "summary"
            } else {
                "names"
            },
        )
        .with("limit", limit);
    let instead = "ask for fewer with limit";
    Ok(Prepared::reading(
        facts,
        call.space.clone(),
        answer_bytes_max,
        instead,
        move |permit| async move {
            let shows = |name: &str| permit.shows(name);
            let list = || {
                let tenant = call.caller.tenant();
                catalog.list(tenant, &listing, &shows)
            };
            let page: Page = list().await?;
            match json_bytes(&page, answer_bytes_max) {
                Some(bytes) if !call.space.take(bytes) => {
                    // As large as its answer: it does not wait in memory.
                    drop(page);
                    call.space.enter(bytes).await?;
                    Ok(list().await?)
                }
                _ => Ok(page),
            }
        },
    ))
}
