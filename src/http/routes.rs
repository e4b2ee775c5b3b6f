//! Who is answered with what. Pure, but for what is in memory.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::board::Board;
use crate::config::Token;
use crate::observe::metrics::{Metrics, text};

const PAGE: &str = include_str!("page.html");
/// Stands in the page where the random word goes without which the browser runs nothing.
const NONCE: &str = "@NONCE@";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// Answers.
pub struct Desk {
    /// The figures.
    pub metrics: Arc<Metrics>,
    /// What was gathered from source and lake.
    pub board: Arc<Board>,
    /// What a client must bring.
    pub token: Option<Token>,
    /// Whether a client may call us by any name. Without a token only by `localhost` or an address,
    /// so that no page of the web can have its own name point here and read along.
    pub any_host: bool,
}

impl Desk {
    /// The answer to a request.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            answer
                .headers_mut()
                .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        if !self.any_host && !is_own_name(request) {
            return plain(StatusCode::FORBIDDEN, "call this by localhost or by its address\n");
        }
        match request.uri().path() {
            "/live" => return plain(StatusCode::OK, "live\n"),
            "/ready" => {
                return match self.metrics.is_ready() {
                    true => plain(StatusCode::OK, "ready\n"),
                    false => plain(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "not ready: no fence of the current generation yet\n",
                    ),
                };
            }
            // Has no figures in it: it asks for them.
            "/" => return page(),
            "/metrics" | "/status" | "/history" => {}
            _ => return plain(StatusCode::NOT_FOUND, "see /, /metrics, /status, /live, /ready\n"),
        }
        if !self.may(request) {
            let mut answer = plain(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
            let bearer = hyper::header::HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, bearer);
            return answer;
        }
        match request.uri().path() {
            "/metrics" => answer(StatusCode::OK, text::CONTENT_TYPE, text::render(&self.metrics)),
            "/status" => match self.board.status(&self.metrics) {
                Some(status) => as_json(StatusCode::OK, &status),
                None => as_json(
                    StatusCode::SERVICE_UNAVAILABLE,
                    &json!({"error": "the lake has no pipeline yet, or was not read yet"}),
                ),
            },
            _ => as_json(StatusCode::OK, &self.board.history(&self.metrics)),
        }
    }

    fn may<B>(&self, request: &Request<B>) -> bool {
        let Some(token) = &self.token else { return true };
        let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        let bearer = given.and_then(|given| given.split_at_checked(7));
        bearer.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case(b"bearer ") && token.is(given.trim_ascii())
        })
    }
}

/// Whether the client called us by a name that can't be somebody else's.
fn is_own_name<B>(request: &Request<B>) -> bool {
    let Some(host) = request.headers().get(HOST) else { return true };
    let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    host.is_some_and(|host| {
        let name = host.host().trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    })
}

fn page() -> Response<Full<Bytes>> {
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let html = PAGE.replace(NONCE, &nonce);
    let mut answer = answer(StatusCode::OK, "text/html; charset=utf-8", html);
    let headers = answer.headers_mut();
    if let Ok(policy) = policy.parse() {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(X_FRAME_OPTIONS, hyper::header::HeaderValue::from_static("DENY"));
    answer
}

fn as_json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_string(value) {
        Ok(text) => answer(status, JSON, text),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    answer(status, TEXT, text.to_owned())
}

fn answer(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    use hyper::header::HeaderValue;
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Http;

    fn desk(token: Option<&str>) -> Desk {
        let http = Http {
            listen: Some("127.0.0.1:1".parse().unwrap()),
            token_env: token.map(|_| "T".to_owned()),
            ..Http::default()
        };
        let (_, token) = http.open(&|_| token.map(str::to_owned)).unwrap().unwrap();
        Desk {
            metrics: Arc::new(Metrics::new("p")),
            board: Arc::default(),
            any_host: token.is_some(),
            token,
        }
    }

    fn get(desk: &Desk, path: &str, headers: &[(&str, &str)]) -> u16 {
        let request =
            headers.iter().fold(Request::get(path), |r, (name, value)| r.header(*name, *value));
        desk.answer(&request.body(()).unwrap()).status().as_u16()
    }

    #[test]
    fn nothing_is_told_without_the_token_but_that_it_lives() {
        let desk = desk(Some("0123456789abcdef"));
        for path in ["/metrics", "/status", "/history"] {
            for bad in
                ["", "Bearer", "Bearer ", "Bearer 0123456789abcdeX", "Basic 0123456789abcdef"]
            {
                assert_eq!(get(&desk, path, &[("authorization", bad)]), 401, "{path} {bad}");
            }
            assert_eq!(get(&desk, path, &[]), 401);
        }
        let good = [("authorization", "bearer 0123456789abcdef")];
        assert_eq!(get(&desk, "/metrics", &good), 200);
        assert_eq!(get(&desk, "/status", &good), 503);
        assert_eq!((get(&desk, "/live", &[]), get(&desk, "/", &[])), (200, 200));
        assert_eq!(get(&desk, "/ready", &[]), 503);
        assert_eq!(get(&desk, "/etc/passwd", &good), 404);
    }

    #[test]
    fn a_web_page_whose_name_points_here_reads_nothing() {
        let desk = desk(None);
        for (host, status) in [
            ("localhost:9187", 200),
            ("127.0.0.1:9187", 200),
            ("[::1]:9187", 200),
            ("evil.example:9187", 403),
            ("127.0.0.1.evil.example", 403),
            ("@", 403),
        ] {
            assert_eq!(get(&desk, "/metrics", &[("host", host)]), status, "{host}");
        }
        assert_eq!(get(&desk, "/metrics", &[]), 200);
    }

    #[test]
    fn nothing_can_be_changed() {
        let desk = desk(None);
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let request = Request::builder().method(method).uri("/metrics").body(()).unwrap();
            assert_eq!(desk.answer(&request).status().as_u16(), 405);
        }
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere_and_runs_nothing_of_others() {
        let answer = desk(None).answer(&Request::get("/").body(()).unwrap());
        let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert!(!PAGE.contains("http://") && !PAGE.contains("https://") && !PAGE.contains("//cdn"));
        assert!(!PAGE.contains("innerHTML") && !PAGE.contains("insertAdjacentHTML"));
        assert!(!PAGE.contains("document.write") && !PAGE.contains("eval("));
        assert_eq!(PAGE.matches(NONCE).count(), 2, "one style, one script");
        assert!(!PAGE.contains(" style=\""), "the policy forbids style attributes");
    }
}
