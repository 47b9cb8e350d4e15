//! A client of the REST face that says exactly what it is told to say.
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::kit::{Rig, SOON, Who};

/// An answer.
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Page {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
    pub(crate) fn kind(&self) -> &str {
        self.header("content-type").unwrap_or_default()
    }
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
    /// The path in `Link: <…>; rel="next"`.
    pub(crate) fn next(&self) -> Option<String> {
        let link = self.header("link")?;
        let path = link.strip_prefix('<')?.strip_suffix(">; rel=\"next\"");
        Some(path.unwrap_or_else(|| panic!("{link}")).to_owned())
    }
    /// Checks that it is a problem, and which.
    pub(crate) fn is_problem(&self, what: &str, status: u16, reason: &str) {
        assert_eq!(
            (self.status, self.kind()),
            (status, "application/problem+json"),
            "{what}: {}",
            self.body
        );
        let problem = self.json();
        let told = (&problem["reason"], &problem["status"]);
        assert_eq!(told, (&reason.into(), &status.into()), "{what}: {problem}");
        for field in ["detail", "type", "title"] {
            let text = problem[field].as_str();
            assert!(text.is_some_and(|t| !t.is_empty()), "{what}: {problem}");
        }
    }
}

/// A request, to be sent in one piece.
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a str,
}

impl Ask<'_> {
    fn text(&self) -> String {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        let named = |name: &str| {
            self.headers
                .iter()
                .any(|(n, _)| n.eq_ignore_ascii_case(name))
        };
        if !named("host") {
            text += "Host: localhost\r\n";
        }
        for (name, value) in self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !self.body.is_empty() {
            text += &format!("Content-Length: {}\r\n", self.body.len());
        }
        text + "Connection: close\r\n\r\n" + self.body
    }

    /// Sends it, and reads the answer to its end.
    pub(crate) async fn send(&self, to: SocketAddr) -> Page {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(self.text().as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_lowercase(), value.to_owned())
        };
        Page {
            status: status.parse().unwrap(),
            headers: lines.map(header).collect(),
            body: body.to_owned(),
        }
    }
}

/// Asks as somebody, with headers.
pub(crate) async fn ask(
    rig: &Rig,
    who: Who,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Page {
    let ask = Ask {
        method,
        path,
        headers,
        body: "",
    };
    ask.send(rig.rest(who)).await
}

/// Looks as somebody.
pub(crate) async fn get_as(rig: &Rig, who: Who, path: &str) -> Page {
    ask(rig, who, "GET", path, &[]).await
}

/// Looks as an admin.
pub(crate) async fn get(rig: &Rig, path: &str) -> Page {
    get_as(rig, Who::Admin, path).await
}

/// Changes something as somebody, as one should.
pub(crate) async fn post(rig: &Rig, who: Who, path: &str) -> Page {
    let ask = Ask {
        method: "POST",
        path,
        headers: &[("Content-Type", "application/json")],
        body: "{}",
    };
    ask.send(rig.rest(who)).await
}

/// A stream of server-sent events that is read as it comes.
pub(crate) struct Feed {
    stream: TcpStream,
    heard: String,
}

impl Feed {
    pub(crate) async fn open(rig: &Rig, who: Who, path: &str, headers: &[(&str, &str)]) -> Self {
        Self::at(rig.rest(who), path, headers).await
    }
    pub(crate) async fn at(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Self {
        let ask = Ask {
            method: "GET",
            path,
            headers,
            body: "",
        };
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(ask.text().as_bytes()).await.unwrap();
        let mut feed = Self {
            stream,
            heard: String::new(),
        };
        let head = feed.until("\r\n\r\n").await.to_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        feed
    }

    /// What comes up to `end`, which comes soon.
    async fn until(&mut self, end: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.heard.find(end) {
                let rest = self.heard.split_off(at + end.len());
                return std::mem::replace(&mut self.heard, rest);
            }
            let mut some = [0; 4_096];
            let left = SOON.saturating_sub(start.elapsed());
            let read = tokio::time::timeout(left, self.stream.read(&mut some)).await;
            let n = read.unwrap_or_else(|_| panic!("no {end:?} in {:?}", self.heard));
            let n = n.unwrap();
            assert!(n > 0, "it ended without {end:?}: {:?}", self.heard);
            self.heard += std::str::from_utf8(&some[..n]).unwrap();
        }
    }

    /// The next message: its fields.
    pub(crate) async fn message(&mut self) -> Message {
        loop {
            let text = self.until("\n\n").await;
            let field = |name: &str| {
                let value = text.lines().find_map(|l| l.strip_prefix(name));
                value.map(str::to_owned)
            };
            if let Some(data) = field("data: ") {
                return Message {
                    id: field("id: "),
                    event: field("event: "),
                    retry: field("retry: "),
                    data: serde_json::from_str(&data).unwrap(),
                };
            }
        }
    }

    /// Reads to the end, which comes soon.
    pub(crate) async fn ends(mut self) {
        let mut rest = String::new();
        let read = self.stream.read_to_string(&mut rest);
        tokio::time::timeout(SOON, read).await.unwrap().unwrap();
    }
}

/// A server-sent event.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) retry: Option<String>,
    pub(crate) data: Value,
}
