// Package stream carries bytes and sealed messages between a node and a server or relay over whatever lets
// HTTP through: plain HTTP, TLS, a proxy that must be asked for a tunnel, a reverse proxy that knows only
// WebSocket. Packages control, relay and node stand on it; it knows nothing of what they say.
//
// # From a URL to a connection
//
// [Dial] sends a GET that asks for an upgrade (RFC 9110 section 7.8) to a protocol of ours. After 101 the
// connection is a pipe of bytes: no framing, nothing copied. An intermediary that strips or refuses the
// upgrade is passed by asking again, on a new connection, for a WebSocket (RFC 6455) whose subprotocol is the
// same name; the borders of its binary messages mean nothing. [Accept] is the other end of both. The first
// that works is taken and [Info] says which it was.
//
// A server of ours that refuses says so in a document ([WriteError]), and then nothing else is tried. Anything
// else that answers is somebody else's: a proxy whose server is down (worth trying again: weft.CodeUnavailable),
// a proxy that lets no upgrade through, or no weft at all. Each is told in one sentence.
//
// # What TLS is worth here
//
// Trust does not rest on TLS. What the streams carry proves both ends inside: control speaks Noise, a relay
// proves its key in the answer to Bind, and packets are WireGuard's. So a certificate that nothing vouches for
// is accepted, and Info.TLS tells which of these it was: "pinned" (its SHA-256 is the one expected),
// "verified" (the system's roots vouch for it and its name), "unverified" (neither), "none" (no TLS). An
// intermediary that ends the TLS sees names of paths and lengths of messages, as it would of any HTTPS site.
//
// # Noise inside
//
// [DialNoise] and [AcceptNoise] run Noise_IK_25519_ChaChaPoly_BLAKE2s (noiseprotocol.org, revision 34) with
// the server's key known beforehand. The node's first message rides in the header of the request, so that a
// server which does not hold the expected key says so before anything is upgraded; the server's is the first
// record on the stream. The prologue binds the protocol's name. Then [Messages] follow:
//
//	record    | length (2) | Noise transport message of that length (16..65535) |
//	message   | length (4) | bytes |        in the plaintexts of as many records as it takes
//
// A message begins a record. Both directions change their key (Noise section 4.2, Rekey) every
// [RekeyRecords] records, so that a key stolen from memory opens little of what was recorded before.
//
// # One port
//
// [Listener] tells TLS from plain HTTP by the first byte, so that one port serves a browser, a node and a
// reverse proxy in front. [LoadOrCreateCertificate] makes the certificate that nobody has to vouch for.
//
// The package leans on key, wire and weft, on flynn/noise and coder/websocket.
package stream

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Timeouts of the stages of a connection. Each is long enough for a satellite hop (600 ms) and TCP's first
// three retransmissions (1 + 2 + 4 s, RFC 6298), and short enough that a person still waits.
const (
	ConnectTimeout   = 10 * time.Second // name lookup and TCP, to the server or to the proxy
	TLSTimeout       = 10 * time.Second
	ResponseTimeout  = 10 * time.Second // from the request to the head of its answer
	HandshakeTimeout = 10 * time.Second // of Noise, after the upgrade
)

// KeepAlive finds out a peer that vanished while nothing was being said: after 15 s of silence four probes 15 s
// apart. Most NATs and proxies keep an idle TCP connection for a minute at least.
var KeepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4}

const (
	// maxHead bounds in bytes what is read of an answer before it is known to be ours.
	maxHead = 64 << 10
	// maxErrorDocument bounds an error document.
	maxErrorDocument = 4 << 10
	// headerError marks a refusal of ours, headerProto names the protocol a server of ours speaks at a path,
	// headerHandshake carries Noise's first message.
	headerError     = "Weft-Error"
	headerProto     = "Weft-Proto"
	headerHandshake = "Weft-Handshake"
)

// A Transport is what carries a stream's bytes.
type Transport string

// The transports.
const (
	Upgrade   Transport = "upgrade"
	WebSocket Transport = "websocket"
)

// TLSState is what is known of the other end's certificate; the package comment says why none is refused.
type TLSState string

// The states of TLS.
const (
	TLSNone       TLSState = "none"
	TLSPinned     TLSState = "pinned"
	TLSVerified   TLSState = "verified"
	TLSUnverified TLSState = "unverified"
)

// Info tells how a stream came about.
type Info struct {
	Transport Transport
	TLS       TLSState
	Proxy     string // host:port of the HTTP proxy that tunnels, or ""
}

// Options say what to dial. URL, Path and Proto are needed; the zero value of the others is the default.
type Options struct {
	URL    string      // https://host[:port][/prefix], or http://
	Path   string      // appended to the URL's own
	Proto  string      // protocol to upgrade to, "name/version"
	Header http.Header // added to the request; not kept

	// Fingerprint is the SHA-256 of the certificate that is expected.
	Fingerprint []byte
	// Roots vouch for a certificate instead of the system's.
	Roots *x509.CertPool

	// DialContext makes the TCP connection to the server or proxy.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
	// Proxy chooses the proxy of a request; http.ProxyFromEnvironment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY) if
	// nil. The proxy is asked for a tunnel (CONNECT) for http:// too, since it would drop an upgrade.
	Proxy func(*http.Request) (*url.URL, error)

	// ReadBuffer and WriteBuffer size the socket's buffers, in bytes. Zero leaves them to the kernel, which
	// on Linux grows them with the bandwidth-delay product; a size switches that off.
	ReadBuffer, WriteBuffer int
}

// pipe is a net.Conn after an upgrade: what the reader of the HTTP head had read too far comes first.
type pipe struct {
	net.Conn
	early []byte   // owned by the one reader
	under net.Conn // what Conn runs over: the way down to the socket
}

func (p *pipe) Read(b []byte) (int, error) {
	if len(p.early) > 0 {
		n := copy(b, p.early)
		if p.early = p.early[n:]; len(p.early) == 0 {
			p.early = nil
		}
		return n, nil
	}
	return p.Conn.Read(b)
}

// NetConn returns the connection below, as tls.Conn does.
func (p *pipe) NetConn() net.Conn { return p.under }

func (p *pipe) RemoteAddr() net.Addr { return p.under.RemoteAddr() }
func (p *pipe) LocalAddr() net.Addr  { return p.under.LocalAddr() }

// TCPConn goes down through TLS and what this package wraps to the socket, for its options. Nothing is to be
// read or written there.
func TCPConn(c net.Conn) (*net.TCPConn, bool) {
	for c != nil {
		switch t := c.(type) {
		case *net.TCPConn:
			return t, true
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil, false
		}
	}
	return nil, false
}

// tune sets what every stream of ours has. Errors are of sockets that are already broken, which the next read
// says better.
func tune(c net.Conn, readBuffer, writeBuffer int) {
	t, ok := TCPConn(c)
	if !ok {
		return
	}
	_ = t.SetNoDelay(true)
	_ = t.SetKeepAliveConfig(KeepAlive)
	if readBuffer > 0 {
		_ = t.SetReadBuffer(readBuffer)
	}
	if writeBuffer > 0 {
		_ = t.SetWriteBuffer(writeBuffer)
	}
}

// within runs f, which uses c, with a deadline, and breaks f off when ctx ends. The connection has no deadline
// afterwards; it is the caller's to close when there is an error.
func within(ctx context.Context, c net.Conn, d time.Duration, f func() error) error {
	_ = c.SetDeadline(time.Now().Add(d))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	_ = c.SetDeadline(time.Time{})
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// isEnd reports that a connection ended without a word, as against one on which something unexpected came.
func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
