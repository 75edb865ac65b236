package uapi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"weft/host"
)

// Dir is where tools look for sockets (wg(8), wireguard.com/xplatform).
const Dir = "/var/run/wireguard"

const (
	// maxConns is how many may be served at once; who comes later waits.
	maxConns = 16
	// patience is how long somebody may take to ask, and to take the answer.
	patience = 10 * time.Second
)

// ErrTaken is wrapped when somebody else serves an interface of that name on this machine. It happens between network
// namespaces, which have their interfaces each and that directory together.
var ErrTaken = errors.New("another program serves an interface of that name")

// A Server answers on a socket.
type Server struct {
	path string
	ours os.FileInfo
	l    *net.UnixListener
	dev  Device
	log  *slog.Logger

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil: closed
	wg    sync.WaitGroup
}

// Serve begins to answer for the interface of this name on a socket in dir.
func Serve(dir, name string, dev Device, log *slog.Logger) (*Server, error) {
	s := &Server{path: filepath.Join(dir, name+".sock"), dev: dev, log: log, conns: make(map[net.Conn]struct{})}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of WireGuard's sockets: %w", err)
	}
	if err := s.listen(); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.path, err)
	}
	s.wg.Go(s.accept)
	return s, nil
}

// listen makes the socket, and shows it when it answers: wg(8) removes one that refuses it, as a socket does between bind(2)
// and listen(2).
func (s *Server) listen() error {
	hidden := fmt.Sprintf("%s.%08x", s.path, rand.Uint32())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: hidden})
	if err != nil {
		return err
	}
	defer os.Remove(hidden)
	l.SetUnlinkOnClose(false) // of its names, one is gone by then, and the other may be another's
	if err = os.Chmod(hidden, 0o600); err == nil {
		s.ours, err = os.Lstat(hidden)
	}
	if err == nil {
		err = s.show(hidden)
	}
	if err != nil {
		l.Close()
		return err
	}
	s.l = l
	return nil
}

// show gives the socket its name, that of one too that a killed process has left.
func (s *Server) show(hidden string) error {
	err := os.Link(hidden, s.path)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	st, e := os.Lstat(s.path)
	if e == nil && st.Mode().Type() != fs.ModeSocket {
		return errors.New("something else is there: move it away")
	}
	if c, e := net.Dial("unix", s.path); e == nil {
		c.Close()
		return ErrTaken
	} else if !errors.Is(e, syscall.ECONNREFUSED) && !errors.Is(e, fs.ErrNotExist) {
		return e
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(hidden, s.path)
}

// Close ends all that is under way and removes the socket.
func (s *Server) Close() error {
	if st, err := os.Lstat(s.path); err == nil && os.SameFile(st, s.ours) {
		os.Remove(s.path)
	}
	err := s.l.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

func (s *Server) accept() {
	slots := make(chan struct{}, maxConns)
	for {
		slots <- struct{}{}
		c, err := s.l.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				s.log.Error("WireGuard's tools are not answered any more", "socket", s.path, "error", err)
			}
			return
		}
		s.mu.Lock()
		if s.conns == nil {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() {
			defer func() {
				c.Close()
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
				<-slots
			}()
			if who, err := host.PeerCredentials(c); err == nil && who.UID != 0 && int(who.UID) != os.Geteuid() {
				return
			}
			if err := s.converse(c); err != nil {
				s.log.Debug("a conversation with one of WireGuard's tools ended early", "error", err)
			}
		})
	}
}

// converse answers requests until there are no more.
func (s *Server) converse(c net.Conn) error {
	r := bufio.NewReader(c)
	for {
		c.SetDeadline(time.Now().Add(patience))
		op, err := readLine(r)
		switch {
		case err == io.EOF, err == nil && op == "":
			return nil
		case err != nil:
			return err
		}
		answer, err := s.answer(op, r)
		if err != nil {
			// The number is negative: so is every implementation's, and wg(8) reads it that way. What is left of the
			// request is not understood either.
			fmt.Fprintf(c, "errno=%d\n\n", -int(errnoOf(err)))
			return err
		}
		if _, err := c.Write(append(answer, "errno=0\n\n"...)); err != nil {
			return err
		}
	}
}

func (s *Server) answer(op string, r *bufio.Reader) ([]byte, error) {
	switch op {
	case "get=1":
		if line, err := readLine(r); err != nil {
			return nil, err
		} else if line != "" {
			return nil, refuse(syscall.EINVAL, "a get that asks for something")
		}
		i, err := s.dev.Get()
		return AppendInterface(nil, i), err
	case "set=1":
		change, err := ParseChange(r)
		if err != nil {
			return nil, err
		}
		return nil, s.dev.Set(change)
	}
	return nil, refuse(syscall.EINVAL, "neither a get nor a set")
}
