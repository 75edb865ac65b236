package control

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
	"strconv"

	"weft"
	"weft/host"
	"weft/policy"
)

// The admin API: HTTP with JSON on a unix socket in the server's directory. Who may open the socket, may do
// everything: its mode is 0600, and the kernel's word on who is at the other end is asked for, too. Requests that
// a browser might have been talked into are refused, wherever they come from.

// adminHost is the only Host that the admin API answers to. No web page can name it: it is no domain.
const adminHost = "weft.admin"

// maxAdminBody bounds a request's body in bytes; it holds a policy, in which JSON may need six bytes for one.
const maxAdminBody = 6*policy.MaxText + 1024

// maxSocketPath is the longest path of a unix socket in bytes: sun_path without its final zero byte (unix(7)).
const maxSocketPath = 107

// ListenAdmin listens on the socket at path, which only this process's user, and root, can connect to. The caller has
// the directory locked (OpenDir): a socket that is there already is one that a killed server has left.
func ListenAdmin(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of the admin socket %s is longer than the %d bytes that a system takes: choose a directory with a shorter path",
			path, maxSocketPath)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s, where the admin socket belongs, is something else: move it away", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the admin socket of the last start: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the admin socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("close the admin socket to others: %w", err)
	}
	return adminListener{l}, nil
}

// adminListener lets nobody in but root and this process's user. Where the system does not tell who connects, the
// socket's mode has to do.
type adminListener struct{ net.Listener }

func (l adminListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			return c, nil
		}
		who, err := host.PeerCredentials(u)
		if errors.Is(err, host.ErrNotSupported) || err == nil && (who.UID == 0 || int(who.UID) == os.Geteuid()) {
			return c, nil
		}
		c.Close()
	}
}

// AdminHandler answers the admin API's requests.
func (s *Server) AdminHandler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer, err := f(r)
			if err != nil {
				refuse(w, reason(err))
				return
			}
			reply(w, http.StatusOK, answer)
		})
	}
	const schema = weft.SchemaVersion
	handle("GET /v1/status", func(*http.Request) (any, error) { return s.Status(), nil })

	handle("GET /v1/dns", func(*http.Request) (any, error) { return DNSAnswer{schema, s.DNS()}, nil })
	handle("POST /v1/dns", func(r *http.Request) (any, error) {
		q, err := body[DNSRequest](r)
		if err != nil {
			return nil, err
		}
		i, err := s.SetDNS(r.Context(), q)
		return DNSAnswer{schema, i}, err
	})

	handle("GET /v1/users", func(*http.Request) (any, error) { return UsersAnswer{schema, s.Users()}, nil })
	handle("POST /v1/users", func(r *http.Request) (any, error) {
		q, err := body[UserRequest](r)
		if err != nil {
			return nil, err
		}
		u, err := s.CreateUser(r.Context(), q.Name)
		return UserAnswer{schema, u}, err
	})
	handle("POST /v1/users/{user}/rename", func(r *http.Request) (any, error) {
		q, err := body[RenameRequest](r)
		if err != nil {
			return nil, err
		}
		u, err := s.RenameUser(r.Context(), r.PathValue("user"), q.Name)
		return UserAnswer{schema, u}, err
	})
	handle("POST /v1/users/{user}/expire", func(r *http.Request) (any, error) {
		q, err := body[ExpireRequest](r)
		if err != nil {
			return nil, err
		}
		u, err := s.ExpireUser(r.Context(), r.PathValue("user"), q)
		return UserAnswer{schema, u}, err
	})
	for verb, f := range map[string]func(context.Context, string) (UserInfo, error){"disable": s.DisableUser, "enable": s.EnableUser} {
		handle("POST /v1/users/{user}/"+verb, func(r *http.Request) (any, error) {
			u, err := f(r.Context(), r.PathValue("user"))
			return UserAnswer{schema, u}, err
		})
	}
	handle("POST /v1/users/{user}/link", func(r *http.Request) (any, error) {
		q, err := body[LinkRequest](r)
		if err != nil {
			return nil, err
		}
		u, err := s.LinkUser(r.Context(), r.PathValue("user"), q.Issuer, q.Subject)
		return UserAnswer{schema, u}, err
	})
	handle("DELETE /v1/users/{user}", func(r *http.Request) (any, error) {
		return DoneAnswer{schema}, s.RemoveUser(r.Context(), r.PathValue("user"))
	})

	handle("GET /v1/keys", func(*http.Request) (any, error) { return KeysAnswer{schema, s.Keys()}, nil })
	handle("POST /v1/keys", func(r *http.Request) (any, error) {
		q, err := body[KeyRequest](r)
		if err != nil {
			return nil, err
		}
		k, token, err := s.CreateKey(r.Context(), q)
		return KeyAnswer{schema, k, token.String()}, err
	})
	handle("POST /v1/keys/{key}/expire", func(r *http.Request) (any, error) {
		id, err := keyNumber(r)
		if err != nil {
			return nil, err
		}
		q, err := body[ExpireRequest](r)
		if err != nil {
			return nil, err
		}
		if q.Never {
			return nil, sentence(weft.CodeBadRequest, "a key's end can only be brought forward")
		}
		k, err := s.ExpireKey(r.Context(), id, q.In)
		return KeyAnswer{Schema: schema, Key: k}, err
	})
	handle("DELETE /v1/keys/{key}", func(r *http.Request) (any, error) {
		id, err := keyNumber(r)
		if err != nil {
			return nil, err
		}
		return DoneAnswer{schema}, s.RemoveKey(r.Context(), id)
	})

	handle("GET /v1/nodes", func(*http.Request) (any, error) { return NodesAnswer{schema, s.Nodes()}, nil })
	handle("POST /v1/nodes", func(r *http.Request) (any, error) {
		q, err := body[PlainRequest](r)
		if err != nil {
			return nil, err
		}
		return s.CreatePlain(r.Context(), q)
	})
	handle("POST /v1/nodes/{node}/expire", func(r *http.Request) (any, error) {
		q, err := body[ExpireRequest](r)
		if err != nil {
			return nil, err
		}
		n, err := s.ExpireNode(r.Context(), r.PathValue("node"), q)
		return NodeAnswer{schema, n}, err
	})
	handle("POST /v1/nodes/{node}/rename", func(r *http.Request) (any, error) {
		q, err := body[RenameRequest](r)
		if err != nil {
			return nil, err
		}
		n, err := s.RenameNode(r.Context(), r.PathValue("node"), q.Name)
		return NodeAnswer{schema, n}, err
	})
	handle("POST /v1/nodes/{node}/move", func(r *http.Request) (any, error) {
		q, err := body[MoveRequest](r)
		if err != nil {
			return nil, err
		}
		n, err := s.MoveNode(r.Context(), r.PathValue("node"), q.User)
		return NodeAnswer{schema, n}, err
	})
	handle("POST /v1/nodes/{node}/tag", func(r *http.Request) (any, error) {
		q, err := body[TagRequest](r)
		if err != nil {
			return nil, err
		}
		n, err := s.TagNode(r.Context(), r.PathValue("node"), q.Tags)
		return NodeAnswer{schema, n}, err
	})
	for verb, f := range map[string]func(context.Context, string) (NodeInfo, error){
		"approve": s.ApproveNode, "disable": s.DisableNode, "enable": s.EnableNode,
	} {
		handle("POST /v1/nodes/{node}/"+verb, func(r *http.Request) (any, error) {
			n, err := f(r.Context(), r.PathValue("node"))
			return NodeAnswer{schema, n}, err
		})
	}
	handle("GET /v1/routes", func(*http.Request) (any, error) { return RoutesAnswer{schema, s.Routes()}, nil })
	handle("POST /v1/nodes/{node}/routes", func(r *http.Request) (any, error) {
		q, err := body[RoutesRequest](r)
		if err != nil {
			return nil, err
		}
		n, err := s.ChangeRoutes(r.Context(), r.PathValue("node"), q)
		return NodeAnswer{schema, n}, err
	})
	handle("DELETE /v1/nodes/{node}", func(r *http.Request) (any, error) {
		return DoneAnswer{schema}, s.RemoveNode(r.Context(), r.PathValue("node"))
	})

	handle("GET /v1/relays", func(*http.Request) (any, error) { return RelaysAnswer{schema, s.Relays()}, nil })
	handle("DELETE /v1/relays/{relay}", func(r *http.Request) (any, error) {
		return DoneAnswer{schema}, s.RemoveRelay(r.Context(), r.PathValue("relay"))
	})

	handle("GET /v1/policy", func(*http.Request) (any, error) { return s.Policy(), nil })
	handle("POST /v1/policy", func(r *http.Request) (any, error) {
		q, err := body[PolicyRequest](r)
		if err != nil {
			return nil, err
		}
		return s.SetPolicy(r.Context(), q)
	})
	handle("POST /v1/policy/check", func(r *http.Request) (any, error) {
		q, err := body[PolicyRequest](r)
		if err != nil {
			return nil, err
		}
		return s.CheckPolicy(r.Context(), q)
	})
	handle("POST /v1/policy/unset", func(r *http.Request) (any, error) {
		q, err := body[PolicyRequest](r)
		if err != nil {
			return nil, err
		}
		return s.UnsetPolicy(r.Context(), q)
	})
	handle("POST /v1/policy/explain", func(r *http.Request) (any, error) {
		q, err := body[ExplainRequest](r)
		if err != nil {
			return nil, err
		}
		return s.ExplainPolicy(r.Context(), q)
	})

	mux.HandleFunc("GET /v1/backup", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-tar")
		out := &begun{w: w}
		if err := s.Backup(r.Context(), out); err != nil && !out.is {
			w.Header().Del("Content-Type")
			refuse(w, reason(err))
		} else if err != nil {
			s.log.Error("a backup broke off", "error", err)
			panic(http.ErrAbortHandler) // so that nobody takes it for a whole one
		}
	})

	handle("/", func(r *http.Request) (any, error) {
		return nil, sentence(weft.CodeNotFound, "the server has nothing called %s %.100q", r.Method, r.URL.Path)
	})
	return guard(mux)
}

// begun notes whether anything was written.
type begun struct {
	w  io.Writer
	is bool
}

func (b *begun) Write(p []byte) (int, error) {
	b.is = true
	return b.w.Write(p)
}

// guard refuses what a browser may send: another Host (a name that was made to resolve to us), an Origin, a body
// that a form could have.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, origin := r.Header["Origin"]
		_, fetch := r.Header["Sec-Fetch-Site"]
		switch {
		case r.Host != adminHost:
			refuse(w, sentence(weft.CodeDenied, "the admin API answers to http://%s only", adminHost))
		case origin || fetch:
			refuse(w, sentence(weft.CodeDenied, "the admin API is not for browsers"))
		case r.Method == http.MethodPost && r.Header.Get("Content-Type") != "application/json":
			refuse(w, sentence(weft.CodeBadRequest, "the admin API takes application/json only"))
		default:
			r.Body = http.MaxBytesReader(w, r.Body, maxAdminBody)
			next.ServeHTTP(w, r)
		}
	})
}

// body reads a request's document.
func body[T any](r *http.Request) (q T, err error) {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err = d.Decode(&q)
	if err == nil && d.Decode(new(json.RawMessage)) != io.EOF {
		err = errors.New("there is more than one document")
	}
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		err = fmt.Errorf("it is longer than %d bytes", maxAdminBody)
	}
	if err != nil {
		return q, sentence(weft.CodeBadRequest, "the request is not understood: %v", err)
	}
	return q, nil
}

func keyNumber(r *http.Request) (uint32, error) {
	n, err := strconv.ParseUint(r.PathValue("key"), 10, 32)
	if err != nil {
		return 0, sentence(weft.CodeBadRequest, "%.40q is not a join key's number: `weft admin key list` shows them", r.PathValue("key"))
	}
	return uint32(n), nil
}

// A refusal is the document of a request that failed.
type refusal struct {
	Schema int `json:"schema_version"`
	*weft.Error
}

func refuse(w http.ResponseWriter, e *weft.Error) {
	status := http.StatusInternalServerError
	switch e.Code {
	case weft.CodeBadRequest:
		status = http.StatusBadRequest
	case weft.CodeNotFound:
		status = http.StatusNotFound
	case weft.CodeDenied:
		status = http.StatusForbidden
	case weft.CodeNameTaken, weft.CodeConflict:
		status = http.StatusConflict
	case weft.CodeUnavailable:
		status = http.StatusServiceUnavailable
	}
	reply(w, status, refusal{weft.SchemaVersion, e})
}

func reply(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"code":"internal","message":"the server could not put its answer into words"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store") // a token may be in it
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}
