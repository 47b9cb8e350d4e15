//! What a client takes (`Accept`, RFC 9110 section 12.5.1), and what it knows already (`If-None-Match`, 13.1.2).
use axum::http::{HeaderMap, header};

/// Media types that a path offers, the default one first.
pub(super) type Offer = &'static [&'static str];

/// Objects and pages.
pub(super) const JSON: &str = "application/json";
/// One JSON object a line.
pub(super) const NDJSON: &str = "application/x-ndjson";
/// Server-sent events.
pub(super) const EVENT_STREAM: &str = "text/event-stream";
/// Prometheus' page.
pub(super) const TEXT: &str = "text/plain";
/// The page for people.
pub(super) const HTML: &str = "text/html";

/// The offered type that the client likes best; the first one if it does not say. None: it takes none of them.
pub(super) fn preferred(headers: &HeaderMap, offer: Offer) -> Option<&'static str> {
    let ranges: Vec<Range> = (headers.get_all(header::ACCEPT).iter())
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(Range::parse)
        .collect();
    if ranges.is_empty() {
        return offer.first().copied();
    }
    let mut best: Option<(&'static str, u16)> = None;
    for kind in offer {
        let liking = liking(&ranges, kind);
        if liking > best.map_or(0, |(_, liking)| liking) {
            best = Some((kind, liking));
        }
    }
    best.map(|(kind, _)| kind)
}

/// One element of `Accept`.
#[derive(Debug)]
struct Range {
    main: String,
    sub: String,
    /// In thousandths.
    quality: u16,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (main, sub) = parts.next()?.split_once('/')?;
        let quality = parts
            .filter_map(|p| p.split_once('='))
            .find(|(name, _)| name.trim().eq_ignore_ascii_case("q"))
            .map_or(Some(1.0), |(_, q)| q.trim().parse::<f32>().ok())
            .filter(|q| (0.0..=1.0).contains(q))?;
        Some(Self {
            main: main.to_ascii_lowercase(),
            sub: sub.to_ascii_lowercase(),
            quality: (quality * 1000.0) as u16,
        })
    }

    /// How closely it names a type: fully, by its main part, as anything, or not at all.
    fn closeness(&self, main: &str, sub: &str) -> Option<u8> {
        match (self.main.as_str(), self.sub.as_str()) {
            (m, s) if m == main && s == sub => Some(2),
            (m, "*") if m == main => Some(1),
            ("*", "*") => Some(0),
            _ => None,
        }
    }
}

/// The quality that the closest range gives to a type, in thousandths.
fn liking(ranges: &[Range], kind: &str) -> u16 {
    let (main, sub) = kind.split_once('/').unwrap_or((kind, ""));
    let close = ranges
        .iter()
        .filter_map(|r| Some((r.closeness(main, sub)?, r.quality)));
    close.max().map_or(0, |(_, quality)| quality)
}

/// Whether the client says that it has this already. Compared weakly, as is asked for GET and HEAD.
pub(super) fn knows(headers: &HeaderMap, etag: &str) -> bool {
    let given = headers.get_all(header::IF_NONE_MATCH).iter();
    given
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, values: &[&str]) -> HeaderMap {
        let mut all = HeaderMap::new();
        for value in values {
            all.append(name.clone(), value.parse().unwrap());
        }
        all
    }

    #[test]
    fn the_best_liked_type_is_served() {
        for (accept, expect) in [
            (&[][..], Some(JSON)),
            (&["*/*"], Some(JSON)),
            (&["application/*"], Some(JSON)),
            (&["application/x-ndjson"], Some(NDJSON)),
            (&["Application/X-NDJSON; q=0.5"], Some(NDJSON)),
            (
                &["application/json;q=0.4, application/x-ndjson;q=0.8"],
                Some(NDJSON),
            ),
            (
                &["application/x-ndjson;q=0.8", "application/json"],
                Some(JSON),
            ),
            (&["text/html, */*;q=0.1"], Some(JSON)),
            (&["application/json;q=0, */*"], Some(NDJSON)),
            (&["text/html"], None),
            (&["application/json;q=0"], None),
            (
                &["application/json;q=0, application/x-ndjson;q=0.000"],
                None,
            ),
            // What cannot be read says nothing.
            (&["nonsense"], Some(JSON)),
            (&["application/json;q=often"], Some(JSON)),
        ] {
            let headers = headers(header::ACCEPT, accept);
            assert_eq!(preferred(&headers, &[JSON, NDJSON]), expect, "{accept:?}");
        }
    }

    #[test]
    fn a_known_tag_is_found_in_any_list() {
        for (given, expect) in [
            (&[][..], false),
            (&["\"a\""], true),
            (&["W/\"a\""], true),
            (&["\"b\", \"a\""], true),
            (&["\"b\"", "\"a\""], true),
            (&["*"], true),
            (&["\"b\""], false),
            (&["a"], false),
        ] {
            let headers = headers(header::IF_NONE_MATCH, given);
            assert_eq!(knows(&headers, "\"a\""), expect, "{given:?}");
        }
    }
}
