//! The OpenAPI document, made of the handlers and the shapes, and a page that shows it. The page is in this binary and
//! loads nothing but the document.
use std::sync::OnceLock;

use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{Modify, OpenApi};

use super::accept::{HTML, JSON};
use super::answer;
use super::problem::{PROBLEM_JSON, Problem};
use super::{feed, jobs, leases, metrics, node, profiles, trail};

/// The page, as it is sent.
const PAGE: &str = include_str!("docs.html");
/// What the page may do: run its own script and style, and ask this address.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Evenkeel",
        description = "What one node's daemon shows: the node, its pool, jobs, leases, profiles, decisions and events. \
                       Amounts have their unit in the name. Errors are problems as in RFC 9457.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        node::show, node::topology, node::pools, jobs::list, jobs::show, jobs::stages, jobs::plan, jobs::explain,
        leases::list, leases::show, profiles::list, profiles::show, trail::decisions, trail::events, feed::events,
        feed::node, feed::job, node::drain, node::undrain, jobs::cancel, leases::revoke, node::health, metrics::show,
        show, page
    ),
    components(schemas(Problem)),
    modifiers(&Problems),
    tags(
        (name = "node", description = "The server as one pool."),
        (name = "jobs", description = "Training runs, their stages, plans and reasons."),
        (name = "leases", description = "Who has what, until when."),
        (name = "profiles", description = "What stages were measured to do."),
        (name = "events", description = "What happened, and why."),
        (name = "streams", description = "What happens, as it happens."),
        (name = "changes", description = "For admins, where listen.rest_writes is true."),
        (name = "daemon", description = "The daemon itself.")
    )
)]
struct Document;

/// The problems that an operation can have: they follow from what it takes.
struct Problems;

impl Modify for Problems {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        if let Some(components) = &mut openapi.components {
            let token = Http::builder().scheme(HttpAuthScheme::Bearer).description(Some(
                "A line of [tenants.tokens] (`evenkeel token`). Without one, the user of the connection counts.",
            ));
            components.add_security_scheme(TOKEN, SecurityScheme::Http(token.build()));
        }
        for (path, item) in &mut openapi.paths.paths {
            let takes_a_name = path.contains('{');
            // What is somebody's is shown to whom it is.
            if path.starts_with("/v1/") || path == "/metrics" {
                for operation in item.get.iter_mut().chain(&mut item.post) {
                    can_fail(operation, &[NOT_KNOWN]);
                    operation.security = Some(vec![
                        SecurityRequirement::default(),
                        SecurityRequirement::new::<_, [&str; 0], &str>(TOKEN, []),
                    ]);
                }
            }
            if let Some(get) = &mut item.get {
                can_be_known(get);
                if takes_a_name || has_parameter(get, "job") || path == "/metrics" {
                    can_fail(get, &[NOT_THERE]);
                }
                always(get);
            }
            if let Some(post) = &mut item.post {
                if takes_a_name {
                    can_fail(post, &[NOT_THERE]);
                }
                can_fail(post, &WRITES);
                always(post);
            }
        }
    }
}

/// The scheme of tokens.
const TOKEN: &str = "token";
/// What can be answered where it matters who looks.
const NOT_KNOWN: (&str, &str) = (
    "401",
    "The token is not valid here; or there is none, and whose connection it is cannot be told.",
);
/// What can be answered where something is asked for by its name.
const NOT_THERE: (&str, &str) = (
    "404",
    "There is no such thing, or it is another tenant's; nobody is told which.",
);
/// What every operation can answer.
const ALWAYS: [(&str, &str); 5] = [
    (
        "406",
        "The client takes none of the media types that there are.",
    ),
    ("421", "The request names another host than this one."),
    (
        "429",
        "There are more requests than the daemon takes; come back later.",
    ),
    ("500", "A bug of the daemon."),
    (
        "503",
        "The daemon stops, is too busy, or cannot read its ledger; come back later.",
    ),
];
/// What every change can answer.
const WRITES: [(&str, &str); 6] = [
    ("400", "The path or the body cannot be read."),
    (
        "403",
        "Not where listen.rest_writes is false, not from a page of another origin, and only for admins.",
    ),
    ("408", "The body did not arrive in time."),
    ("409", "It cannot be done as things are."),
    ("413", "The body is too long."),
    ("415", "The body is not application/json."),
];

fn always(operation: &mut Operation) {
    can_fail(operation, &ALWAYS);
    let summary = operation.summary.clone().unwrap_or_default();
    if let Some(RefOr::T(shown)) = operation.responses.responses.get_mut("200") {
        shown.description = format!("{summary}.");
    }
    if operation.parameters.as_ref().is_some_and(|p| !p.is_empty()) {
        can_fail(
            operation,
            &[("400", "The path or the query cannot be read.")],
        );
    }
}

fn can_fail(operation: &mut Operation, how: &[(&str, &str)]) {
    for (status, what) in how {
        let problem = Ref::from_schema_name("Problem");
        let content = ContentBuilder::new().schema(Some(problem)).build();
        let response = ResponseBuilder::new()
            .description(*what)
            .content(PROBLEM_JSON, content);
        let all = &mut operation.responses.responses;
        all.entry((*status).to_owned())
            .or_insert_with(|| response.build().into());
    }
}

fn has_parameter(operation: &Operation, name: &str) -> bool {
    let is_it = |p: &RefOr<Parameter>| matches!(p, RefOr::T(p) if p.name == name);
    operation.parameters.iter().flatten().any(is_it)
}

/// Objects and pages have a tag, and are not sent again to who has them.
fn can_be_known(operation: &mut Operation) {
    let is_page = has_parameter(operation, "limit");
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let all = &mut operation.responses.responses;
    let Some(RefOr::T(shown)) = all.get_mut("200") else {
        return;
    };
    if !shown.content.contains_key(JSON) {
        return;
    }
    let tag = HeaderBuilder::new()
        .schema(Some(text().build()))
        .description(Some("Changes with the body; for If-None-Match."));
    shown.headers.insert("ETag".to_owned(), tag.build().into());
    if is_page {
        let link = HeaderBuilder::new()
            .schema(Some(text().build()))
            .description(Some("The next page, if there is one: rel=\"next\"."));
        shown.headers.insert("Link".to_owned(), link.build().into());
    }
    let known = ResponseBuilder::new().description("The client has it already (If-None-Match).");
    all.insert("304".to_owned(), known.build().into());
}

/// Written once: it does not change while the daemon runs.
fn document() -> Bytes {
    static WRITTEN: OnceLock<Bytes> = OnceLock::new();
    let written = WRITTEN.get_or_init(|| {
        let text = Document::openapi().to_json();
        text.map(Bytes::from).unwrap_or_else(|error| {
            tracing::error!(%error, "the OpenAPI document cannot be written");
            Bytes::from_static(b"{}")
        })
    });
    written.clone()
}

/// This document
///
/// OpenAPI 3.1.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "getDocument",
    tag = "daemon",
    responses((status = 200, body = Object, content_type = "application/json"))
)]
pub(super) async fn show() -> Response {
    answer::tagged(document(), JSON, None)
}

/// This document, for people
///
/// A page that loads nothing from elsewhere.
#[utoipa::path(
    get,
    path = "/docs",
    operation_id = "getPage",
    tag = "daemon",
    responses((status = 200, body = String, content_type = "text/html"))
)]
pub(super) async fn page() -> Response {
    let mut page = answer::tagged(Bytes::from_static(PAGE.as_bytes()), HTML, None);
    let headers = page.headers_mut();
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, html);
    let policy = HeaderValue::from_static(POLICY);
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_document_has_every_path_and_no_other() {
        let document = Document::openapi();
        let told: BTreeSet<&str> = document.paths.paths.keys().map(String::as_str).collect();
        let routes = super::super::routes();
        let there: BTreeSet<&str> = routes.iter().map(|(path, ..)| *path).collect();
        assert_eq!(told, there);
    }

    #[test]
    fn every_operation_has_a_name_and_says_what_can_go_wrong() {
        let document = Document::openapi();
        let mut names = BTreeSet::new();
        for (path, item) in &document.paths.paths {
            for operation in item.get.iter().chain(&item.post) {
                let id = operation.operation_id.clone().unwrap();
                assert!(names.insert(id.clone()), "{path}: {id} is there twice");
                assert!(operation.summary.is_some(), "{path}");
                for status in ["200", "406", "421", "503"] {
                    assert!(
                        operation.responses.responses.contains_key(status),
                        "{path}: {status}"
                    );
                }
                for (status, response) in &operation.responses.responses {
                    let RefOr::T(response) = response else {
                        continue;
                    };
                    assert!(!response.description.is_empty(), "{path}: {status}");
                }
                if item.post.is_some() {
                    assert!(operation.responses.responses.contains_key("403"), "{path}");
                }
            }
        }
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for sign in [
            "http://",
            "https://",
            "src=",
            "@import",
            "url(",
            "<link",
            "innerHTML",
            "eval(",
        ] {
            assert!(!PAGE.contains(sign), "{sign}");
        }
        assert!(PAGE.contains("fetch(\"openapi.json\""));
    }
}
