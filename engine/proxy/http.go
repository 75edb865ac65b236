package proxy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"
)

const (
	// maxHeader is the longest head of a request, in bytes; browsers' cookies fit.
	maxHeader = 64 << 10
	// webIdle is how long a connection may wait for its next request.
	webIdle = 2 * time.Minute
)

// webListener hands the connections that speak HTTP to the HTTP server.
type webListener Proxy

func (l *webListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.webConns:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l *webListener) Close() error   { return nil }
func (l *webListener) Addr() net.Addr { return l.listener.Addr() }

func (p *Proxy) newHTTP() *http.Server {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, port, err := splitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return p.connect(ctx, network, host, port)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: 8,
		MaxIdleConns:        64,
		IdleConnTimeout:     webIdle,
		// No limit on the wait for an answer: a page may take its time, and the client decides.
	}
	context.AfterFunc(p.ctx, transport.CloseIdleConnections)
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// What the client says goes on as it is; the library takes away what is for one hop.
			for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if v, ok := r.In.Header[h]; ok {
					r.Out.Header[h] = v
				}
			}
			r.Out.URL.RawQuery = r.In.URL.RawQuery
		},
		Transport:     transport,
		FlushInterval: -1,
		ErrorHandler:  p.httpFailure,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	return &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serveHTTP(w, r, forward) }),
		ReadHeaderTimeout: greetingPatience,
		IdleTimeout:       webIdle,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
}

func (p *Proxy) serveHTTP(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	if !p.begin() {
		return
	}
	defer p.running.Done()
	connect := r.Method == http.MethodConnect
	if !connect && !r.URL.IsAbs() {
		http.Error(w, "This is a proxy: it answers CONNECT and requests for http:// addresses.", http.StatusBadRequest)
		return
	}
	if user, password, ok := proxyAuthorization(r.Header.Get("Proxy-Authorization")); !ok || !p.authentic(user, password) {
		w.Header().Set("Proxy-Authenticate", `Basic realm="weft"`)
		http.Error(w, "The proxy wants the user \""+User+"\" and its password.", http.StatusProxyAuthRequired)
		return
	}
	switch {
	case connect:
		p.serveConnect(w, r)
	case r.URL.Scheme != "http":
		http.Error(w, "This proxy reaches "+r.URL.Scheme+" addresses by CONNECT only.", http.StatusNotImplemented)
	default:
		forward.ServeHTTP(w, r)
	}
}

// proxyAuthorization takes the credentials out of a header (RFC 7617).
func proxyAuthorization(header string) (user, password string, ok bool) {
	scheme, encoded, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Basic") {
		return "", "", false
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(b), ":")
}

// splitHostPort takes "host:port" apart.
func splitHostPort(s string) (string, uint16, error) {
	host, digits, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 || host == "" {
		return "", 0, fmt.Errorf("%q is not host:port", s)
	}
	return host, uint16(port), nil
}

func (p *Proxy) serveConnect(w http.ResponseWriter, r *http.Request) {
	host, port, err := splitHostPort(r.Host)
	if err != nil {
		http.Error(w, "CONNECT wants host:port.", http.StatusBadRequest)
		return
	}
	remote, err := p.connect(r.Context(), "tcp", host, port)
	if err != nil {
		p.httpFailure(w, r, err)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		remote.Close()
		http.Error(w, "CONNECT works over HTTP/1.1 only.", http.StatusHTTPVersionNotSupported)
		return
	}
	c := conn.(*client)
	// What the client has sent already is in the server's buffer.
	early := make([]byte, buffered.Reader.Buffered())
	io.ReadFull(buffered.Reader, early)
	_, err = io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	if err == nil {
		_, err = remote.Write(early)
	}
	if err != nil {
		remote.Close()
		c.Close()
		return
	}
	p.splice(c, remote)
}

// httpFailure says in a sentence why a destination was not reached.
func (p *Proxy) httpFailure(w http.ResponseWriter, r *http.Request, err error) {
	p.cfg.Logger.Debug("an HTTP destination was not reached", "host", r.Host, "error", err)
	switch {
	case errors.Is(err, errNotOverlay):
		http.Error(w, "Refused: "+errNotOverlay.Error()+".", http.StatusForbidden)
	case errors.Is(err, errNoName):
		http.Error(w, "Not found: "+errNoName.Error()+".", http.StatusBadGateway)
	case timedOut(err):
		http.Error(w, "The destination does not answer.", http.StatusGatewayTimeout)
	default:
		http.Error(w, "The destination cannot be reached: "+err.Error()+".", http.StatusBadGateway)
	}
}
