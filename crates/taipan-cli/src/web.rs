//! The page in a browser, served to this machine alone.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::{Failure, model, print};

/// The files of the page and of the package, by their address; none if they were not built.
const PAGE: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Where the files of a model are.
const MODEL: &str = "/model/";

/// The most bytes of a request.
const MAX_REQUEST: u64 = 16 << 10;

#[derive(clap::Args)]
pub struct Flags {
    /// The directory of a model, a run or a checkpoint, for the page to open
    model: Option<PathBuf>,
    /// The port on this machine; 0 for any that is free
    #[arg(long, default_value_t = 8077)]
    port: u16,
}

/// What is served.
struct Site {
    port: u16,
    model: Option<PathBuf>,
}

pub fn web(flags: &Flags) -> Result<(), Failure> {
    if PAGE.is_empty() {
        let how = "to build it: scripts/web, and then the program again";
        return Err(format!("web: the program was built without the page; {how}").into());
    }
    let model = flags.model.as_deref().map(model::find).transpose()?;
    if let Some(model) = model.as_ref().filter(|model| !model.is_dir()) {
        return Err(format!("{}: not a directory, expected a model", model.display()).into());
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, flags.port))
        .map_err(|error| format!("--port {}: {error}", flags.port))?;
    let port = listener.local_addr()?.port();
    let opened = if model.is_some() { "?model=/model/" } else { "" };
    print(&format!("http://localhost:{port}/{opened}\n"))?;
    let site = Arc::new(Site { port, model });
    for connection in listener.incoming() {
        // A connection that fails is the browser's to repeat.
        let Ok(connection) = connection else { continue };
        let site = site.clone();
        thread::spawn(move || site.answer(connection));
    }
    Ok(())
}

/// What answers a request.
enum Body {
    Page(&'static [u8]),
    File(File, u64),
    Nothing(&'static str),
}

impl Site {
    /// Answer one request; an error means that nobody listens any more.
    fn answer(&self, mut connection: TcpStream) -> std::io::Result<()> {
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut lines = BufReader::new((&connection).take(MAX_REQUEST)).lines();
        let request = lines.next().unwrap_or_else(|| Err(ErrorKind::UnexpectedEof.into()))?;
        let mut host = None;
        for line in lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("host")
            {
                host = Some(value.trim().to_owned());
            }
        }
        let (body, kind) = self.respond(&request, host.as_deref());
        let (status, length) = match &body {
            Body::Page(bytes) => ("200 OK", bytes.len() as u64),
            Body::File(_, length) => ("200 OK", *length),
            Body::Nothing(status) => (*status, 0),
        };
        write!(
            connection,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Cache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )?;
        match body {
            _ if request.starts_with("HEAD ") => Ok(()),
            Body::Page(bytes) => connection.write_all(bytes),
            Body::File(file, length) => {
                std::io::copy(&mut file.take(length), &mut connection).map(drop)
            }
            Body::Nothing(_) => Ok(()),
        }
    }

    /// The answer to a line such as `GET /index.html HTTP/1.1`, and its type.
    fn respond(&self, request: &str, host: Option<&str>) -> (Body, &'static str) {
        // A page of somewhere else whose name leads to this machine is not to read a model here.
        let ours = ["localhost", "127.0.0.1"].map(|name| format!("{name}:{}", self.port));
        if !host.is_some_and(|host| ours.iter().any(|ours| ours == host)) {
            return (Body::Nothing("403 Forbidden"), "text/plain");
        }
        let Some((method, rest)) = request.split_once(' ') else {
            return (Body::Nothing("400 Bad Request"), "text/plain");
        };
        if !["GET", "HEAD"].contains(&method) {
            return (Body::Nothing("405 Method Not Allowed"), "text/plain");
        }
        let address = rest.split([' ', '?', '#']).next().unwrap_or_default();
        let address = if address == "/" { "/index.html" } else { address };
        let found = match address.strip_prefix(MODEL) {
            Some(name) => self.model_file(name),
            None => PAGE.iter().find(|(name, _)| *name == address).map(|(_, b)| Body::Page(b)),
        };
        match found {
            Some(body) => (body, content_type(address)),
            None => (Body::Nothing("404 Not Found"), "text/plain"),
        }
    }

    /// A file of the model: beside the others, not elsewhere.
    fn model_file(&self, name: &str) -> Option<Body> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
            return None;
        }
        let file = File::open(self.model.as_ref()?.join(name)).ok()?;
        let metadata = file.metadata().ok()?;
        metadata.is_file().then_some(Body::File(file, metadata.len()))
    }
}

/// The type of a file, by its name.
fn content_type(name: &str) -> &'static str {
    match Path::new(name).extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("wasm") => "application/wasm",
        Some("ts" | "md" | "txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(model: Option<PathBuf>) -> Site {
        Site { port: 8077, model }
    }

    fn status(site: &Site, request: &str, host: Option<&str>) -> &'static str {
        match site.respond(request, host).0 {
            Body::Nothing(status) => status,
            _ => "200 OK",
        }
    }

    #[test]
    fn only_this_machine_is_answered() {
        let get = "GET /nowhere HTTP/1.1";
        let site = site(None);
        for host in [None, Some("example.org:8077"), Some("localhost"), Some("localhost:80")] {
            assert_eq!(status(&site, get, host), "403 Forbidden", "{host:?}");
        }
        assert_eq!(status(&site, get, Some("localhost:8077")), "404 Not Found");
        let post = "POST / HTTP/1.1";
        assert_eq!(status(&site, post, Some("127.0.0.1:8077")), "405 Method Not Allowed");
        assert_eq!(status(&site, "?", Some("127.0.0.1:8077")), "400 Bad Request");
    }

    #[test]
    fn of_a_directory_only_its_own_files_are_served() {
        let directory = std::env::temp_dir().join(format!("taipan-web-{}", std::process::id()));
        let model = directory.join("model");
        std::fs::create_dir_all(model.join("below")).unwrap();
        std::fs::write(directory.join("secret"), "x").unwrap();
        std::fs::write(model.join("config.json"), "{}").unwrap();
        let site = site(Some(model));
        let get =
            |path: &str| status(&site, &format!("GET {path} HTTP/1.1"), Some("localhost:8077"));
        assert_eq!(get("/model/config.json"), "200 OK");
        let hidden =
            ["/model/", "/model/../secret", "/model/..", "/model/below", "/model/%2e%2e/secret"];
        for path in hidden {
            assert_eq!(get(path), "404 Not Found", "{path}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn every_file_of_the_page_has_a_type() {
        for (name, _) in PAGE {
            let known =
                content_type(name) != "application/octet-stream" || name.contains("LICENSE");
            assert!(known, "{name}");
        }
        assert_eq!(content_type("/taipan/taipan_wasm_bg.wasm"), "application/wasm");
    }
}
