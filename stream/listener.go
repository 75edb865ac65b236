package stream

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// sniffTimeout is how long a client may take to send its first byte. Both TLS and HTTP clients speak
	// first, so this is one round trip and some retransmissions.
	sniffTimeout = 10 * time.Second
	// maxSniffing bounds the connections that have not sent a byte yet: some 16 MiB. With more, any one of them
	// is closed for each that comes: an honest client has sent its byte long before its turn, and who opens
	// many and says nothing closes his own.
	maxSniffing = 4096
	// recordHandshake begins every TLS connection (RFC 8446 section 5.1).
	recordHandshake = 0x16
	// acceptPause is the pause after an error of Accept that may pass, such as too many open files.
	acceptPause = 50 * time.Millisecond
)

// Listener serves TLS and plain HTTP on one port: what its Accept returns is a *tls.Conn where the first byte
// was TLS's, and the connection itself where it could begin an HTTP request. Anything else is closed without a
// word. A client that is slow with its first byte holds up nobody else; after ten seconds it is closed.
//
// Without a config there is no TLS. Closing the listener closes l and what has not been accepted yet.
func Listener(l net.Listener, config *tls.Config) net.Listener {
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrade
		config.DynamicRecordSizingDisabled = true
	}
	s := &sniffer{
		Listener: l,
		config:   config,
		ready:    make(chan net.Conn),
		failed:   make(chan error, 1),
		closed:   make(chan struct{}),
		most:     maxSniffing,
		waiting:  map[net.Conn]struct{}{},
	}
	go s.run()
	return s
}

type sniffer struct {
	net.Listener
	config *tls.Config
	ready  chan net.Conn
	failed chan error // the listener's end
	closed chan struct{}
	once   sync.Once
	most   int

	mu      sync.Mutex
	waiting map[net.Conn]struct{} // nil after Close
}

func (s *sniffer) run() {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			if passes(err) {
				select {
				case <-time.After(acceptPause):
					continue
				case <-s.closed:
				}
			}
			s.failed <- err
			return
		}
		go s.sniff(c)
	}
}

// passes reports whether Accept may succeed later: the process or system is out of descriptors or memory, or
// the client was gone before it was accepted.
func passes(err error) bool {
	var temporary interface{ Temporary() bool }
	return !errors.Is(err, net.ErrClosed) && errors.As(err, &temporary) && temporary.Temporary()
}

func (s *sniffer) sniff(c net.Conn) {
	if !s.hold(c) {
		c.Close()
		return
	}
	var first [1]byte
	_ = c.SetReadDeadline(time.Now().Add(sniffTimeout))
	n, err := c.Read(first[:])
	_ = c.SetReadDeadline(time.Time{})
	if held := s.release(c); n == 0 || err != nil || !held {
		c.Close()
		return
	}
	var conn net.Conn = &pipe{Conn: c, under: c, early: first[:]}
	switch {
	case first[0] == recordHandshake && s.config != nil:
		conn = tls.Server(&gather{Conn: conn}, s.config)
	case first[0] < 'A' || first[0] > 'Z': // a method is a token, and all in use are capitals (RFC 9110 section 9.1)
		c.Close()
		return
	}
	select {
	case s.ready <- conn:
	case <-s.closed:
		c.Close()
	}
}

func (s *sniffer) hold(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		return false
	}
	if len(s.waiting) >= s.most {
		for other := range s.waiting { // in no order
			delete(s.waiting, other)
			other.Close()
			break
		}
	}
	s.waiting[c] = struct{}{}
	return true
}

func (s *sniffer) release(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.waiting[c]
	delete(s.waiting, c)
	return ok
}

func (s *sniffer) Accept() (net.Conn, error) {
	select {
	case c := <-s.ready:
		return c, nil
	case err := <-s.failed:
		s.failed <- err // for the next call
		return nil, err
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *sniffer) Close() error {
	err := s.Listener.Close()
	s.once.Do(func() {
		close(s.closed)
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.waiting {
			c.Close()
		}
		s.waiting = nil
	})
	return err
}
