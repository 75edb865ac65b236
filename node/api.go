package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"weft"
	"weft/host"
)

// The local API is HTTP over a unix socket. Whoever may reach the socket may read; changing anything takes
// root or the daemon's own user, by the kernel's word (SO_PEERCRED). A request that a browser was tricked into
// making carries a Host or an Origin of its own and is refused whoever makes it (CVE-2022-41924).

// maxRequest bounds the body of a request, in bytes: a token is a few hundred.
const maxRequest = 16 << 10

// maxSocketPath is the longest path of a unix socket in bytes: sun_path without its final zero byte (unix(7)).
const maxSocketPath = 107

type pingRequest struct {
	Peer      string `json:"peer"`
	TimeoutMS int64  `json:"timeout_ms"`
}

type peerRequest struct {
	Peer string `json:"peer"`
}

type accessRequest struct {
	From string `json:"from"`
	To   string `json:"to"`
	What string `json:"what,omitempty"`
}

type credentialsKey struct{}

// listenAPI makes the socket, taking the place of one that a dead daemon left.
func listenAPI(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("the directory of the socket %s cannot be made: %w (choose another with --socket)", path, err)
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of the socket %s is longer than the %d bytes that a system takes: choose another with --socket", path, maxSocketPath)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s is no socket, and is left as it is: choose another with --socket", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("another weft listens on %s: end it, or choose another socket with --socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the socket %s: %w (choose another with --socket)", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("the socket %s: %w (choose another with --socket)", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("the socket %s: %w", path, err)
	}
	return l, nil
}

// serveAPI serves until ctx ends.
func (d *Daemon) serveAPI(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           d.apiHandler(),
		ReadHeaderTimeout: 5 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			cred, err := host.PeerCredentials(c.(*net.UnixConn))
			if err != nil {
				return ctx // nobody: may read
			}
			return context.WithValue(ctx, credentialsKey{}, cred)
		},
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (d *Daemon) apiHandler() http.Handler {
	mux := http.NewServeMux()
	read := func(pattern string, f func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { answer(w, r, f) })
	}
	owner := func(pattern string, f http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if cred, ok := r.Context().Value(credentialsKey{}).(host.Credentials); !ok || cred.UID != 0 && int(cred.UID) != os.Getuid() {
				writeError(w, http.StatusForbidden, &weft.Error{Code: weft.CodeDenied,
					Message: "only root or the user that runs weft node may do that: try with sudo"})
				return
			}
			f(w, r)
		})
	}
	change := func(pattern string, f func(*http.Request) (any, error)) {
		owner(pattern, func(w http.ResponseWriter, r *http.Request) { answer(w, r, f) })
	}
	owner("GET /v1/profile/{kind}", ServeProfile)
	read("GET /v1/status", func(r *http.Request) (any, error) { return d.Status(r.Context()) })
	read("GET /v1/metrics", func(r *http.Request) (any, error) { return d.Metrics(r.Context()) })
	read("GET /v1/settings", func(*http.Request) (any, error) { return d.state.Settings(), nil })
	read("GET /v1/netcheck", func(r *http.Request) (any, error) { return d.Netcheck(r.Context()) })
	read("POST /v1/ping", func(r *http.Request) (any, error) {
		var q pingRequest
		if err := readBody(r, &q); err != nil {
			return nil, err
		}
		return d.Ping(r.Context(), q.Peer, time.Duration(q.TimeoutMS)*time.Millisecond)
	})
	read("POST /v1/explain", func(r *http.Request) (any, error) {
		var q peerRequest
		if err := readBody(r, &q); err != nil {
			return nil, err
		}
		return d.Explain(r.Context(), q.Peer)
	})
	read("POST /v1/access", func(r *http.Request) (any, error) {
		var q accessRequest
		if err := readBody(r, &q); err != nil {
			return nil, err
		}
		return d.Access(r.Context(), q.From, q.To, q.What)
	})
	read("POST /v1/paths", func(r *http.Request) (any, error) {
		var q peerRequest
		if err := readBody(r, &q); err != nil {
			return nil, err
		}
		return d.Paths(r.Context(), q.Peer)
	})
	change("POST /v1/up", func(r *http.Request) (any, error) {
		var q UpRequest
		if err := readBody(r, &q); err != nil {
			return nil, err
		}
		return nil, d.Up(r.Context(), q)
	})
	change("POST /v1/rotate", func(r *http.Request) (any, error) { return nil, d.Rotate(r.Context()) })
	change("POST /v1/down", func(r *http.Request) (any, error) { return nil, d.Down(r.Context()) })
	change("POST /v1/logout", func(r *http.Request) (any, error) { return nil, d.Logout(r.Context()) })
	read("GET /v1/portal", func(r *http.Request) (any, error) { return d.PortalStatus(r.Context()) })
	change("POST /v1/portal", func(r *http.Request) (any, error) {
		var q PortalRequest
		if err := readBody(r, &q); err != nil {
			return nil, err
		}
		return d.Portal(r.Context(), q)
	})
	change("PUT /v1/settings", func(r *http.Request) (any, error) {
		var s Settings
		if err := readBody(r, &s); err != nil {
			return nil, err
		}
		return nil, d.SetSettings(r.Context(), s)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != apiHost || r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
			writeError(w, http.StatusForbidden, &weft.Error{Code: weft.CodeDenied,
				Message: "this is weft's local interface: use the weft command"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, r *http.Request, f func(*http.Request) (any, error)) {
	doc, err := f(r)
	if err != nil {
		writeFailure(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if doc == nil {
		doc = struct{}{}
	}
	json.NewEncoder(w).Encode(doc)
}

// writeFailure answers with an error, and with the status that its code stands for.
func writeFailure(w http.ResponseWriter, err error) {
	var e *weft.Error
	if !errors.As(err, &e) {
		e = &weft.Error{Code: weft.CodeInternal, Message: err.Error()}
	}
	status := http.StatusInternalServerError
	switch e.Code {
	case weft.CodeBadRequest, weft.CodeBadToken:
		status = http.StatusBadRequest
	case weft.CodeNotFound:
		status = http.StatusNotFound
	case weft.CodeUnavailable:
		status = http.StatusServiceUnavailable
	}
	writeError(w, status, e)
}

func writeError(w http.ResponseWriter, status int, e *weft.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(e)
}

func readBody(r *http.Request, into any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxRequest+1))
	if err == nil && len(b) > maxRequest {
		err = fmt.Errorf("longer than %d bytes", maxRequest)
	}
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return &weft.Error{Code: weft.CodeBadRequest, Message: "the request cannot be read: " + err.Error()}
	}
	return nil
}
