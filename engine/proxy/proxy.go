// Package proxy lets programs on this machine into the overlay where it has no interface: SOCKS5 and an HTTP
// proxy on one loopback port, told apart by the first byte that a client sends.
//
//	05                      SOCKS5 (RFC 1928): CONNECT and UDP ASSOCIATE, with user and password (RFC 1929)
//	a letter                HTTP: CONNECT, and requests in absolute form (RFC 9112 section 3.2.2)
//	anything else           closed
//
// Everybody on the machine can reach a loopback port, and web pages can, too. So each connection has to bring
// the password, an address that is not loopback is refused, and a request that was not meant for a proxy is
// answered with an error. Passwords are compared in constant time and never logged.
//
// A destination is a name of the overlay, or an overlay address. All else is refused, unless Direct lets it go
// out by the system's own network. The number of connections, the time to say what one wants, and silence are
// bounded.
package proxy

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// User is the name that goes with the password.
const User = "weft"

const (
	// maxConns is how many connections may be open; further ones wait to be accepted. Each can take two
	// descriptors and more.
	maxConns = 1024
	// greetingPatience is how long a client may take to say what it wants.
	greetingPatience = 30 * time.Second
	// dialPatience is how long a connection to a destination may take to stand: a packet that is lost twice
	// (RFC 6298 section 2: 1 s, then 2 s, then 4 s) is waited for, and a WireGuard handshake that is (5 s).
	dialPatience = 20 * time.Second
)

// Config says what the proxy is to do. Dial, Overlay and Logger are required.
type Config struct {
	// Dial connects to an overlay address; network is "tcp" or "udp".
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Resolve gives the addresses of a name of the overlay, none for any other. It may be nil.
	Resolve func(name string) []netip.Addr
	// Overlay tells overlay addresses from others.
	Overlay func(netip.Addr) bool
	// Direct lets destinations outside the overlay be reached by the system's own network.
	Direct bool
	// Password is the user's; "" is a random one.
	Password string
	Logger   *slog.Logger
}

// A Proxy listens until it is closed.
type Proxy struct {
	cfg      Config
	password [sha256.Size]byte // its hash: equal lengths compare in equal time
	plain    string
	listener net.Listener
	http     *http.Server
	ctx      context.Context
	stop     context.CancelFunc
	places   chan struct{}
	webConns chan net.Conn // to the HTTP server
	running  sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// NewPassword is 128 random bits in letters and digits.
func NewPassword() string { return rand.Text() }

// Listen begins to listen. The address is "host:port" with a loopback address or "localhost" as the host; port
// 0 is any.
func Listen(addr string, cfg Config) (*Proxy, error) {
	at, err := loopback(addr)
	if err != nil {
		return nil, err
	}
	if cfg.Password == "" {
		cfg.Password = NewPassword()
	}
	if len(cfg.Password) > 255 {
		return nil, errors.New("the proxy's password is too long: SOCKS5 carries 255 bytes at most (RFC 1929)")
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, listenError(at, err)
	}
	p := &Proxy{
		cfg:      cfg,
		password: sha256.Sum256([]byte(cfg.Password)),
		plain:    cfg.Password,
		listener: l,
		places:   make(chan struct{}, maxConns),
		webConns: make(chan net.Conn),
		conns:    make(map[net.Conn]struct{}),
	}
	p.cfg.Password = ""
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.http = p.newHTTP()
	p.running.Go(func() { p.http.Serve((*webListener)(p)) })
	p.running.Go(p.accept)
	return p, nil
}

func loopback(addr string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address for the proxy: write host:port, as in 127.0.0.1:1055", addr)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address for the proxy: write host:port, as in 127.0.0.1:1055", addr)
	}
	if !ip.IsLoopback() {
		return netip.AddrPort{}, fmt.Errorf("the proxy does not listen on %s: its password crosses that network in clear; use 127.0.0.1", ip)
	}
	return netip.AddrPortFrom(ip, uint16(n)), nil
}

func listenError(at netip.AddrPort, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("the proxy's port %d is in use by another program: stop that one or choose another port: %w", at.Port(), err)
	}
	return fmt.Errorf("the proxy cannot listen on %s: %w", at, err)
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() netip.AddrPort { return p.listener.Addr().(*net.TCPAddr).AddrPort() }

// Password is what goes with [User].
func (p *Proxy) Password() string { return p.plain }

// Close stops listening, closes every connection, and returns when their goroutines have ended.
func (p *Proxy) Close() error {
	p.stop()
	p.listener.Close()
	p.http.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
	return nil
}

// begin lets something run that Close waits for; it calls p.running.Done.
func (p *Proxy) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.running.Add(1)
	}
	return !p.closed
}

// acceptRetry is the pause after a failing accept: the system is out of descriptors, most likely.
const acceptRetry = 100 * time.Millisecond

func (p *Proxy) accept() {
	for {
		select {
		case p.places <- struct{}{}:
		case <-p.ctx.Done():
			return
		}
		c, err := p.listener.Accept()
		if err != nil {
			<-p.places
			if p.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			p.cfg.Logger.Warn("the proxy cannot accept a connection", "error", err)
			select {
			case <-time.After(acceptRetry):
			case <-p.ctx.Done():
			}
			continue
		}
		client := p.adopt(c)
		p.running.Go(func() { p.serve(client) }) // this goroutine runs, so Close waits
	}
}

// A client is an accepted connection whose first bytes can be looked at. Closing it gives its place back.
type client struct {
	net.Conn
	r       *bufio.Reader
	release func()
}

func (p *Proxy) adopt(c net.Conn) *client {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
	if p.closed {
		c.Close()
	}
	return &client{Conn: c, r: bufio.NewReader(c), release: sync.OnceFunc(func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
		<-p.places
	})}
}

func (c *client) Read(b []byte) (int, error) { return c.r.Read(b) }

func (c *client) Close() error {
	defer c.release()
	return c.Conn.Close()
}

func (c *client) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

func (p *Proxy) serve(c *client) {
	c.SetDeadline(time.Now().Add(greetingPatience))
	first, err := c.r.Peek(1)
	switch {
	case err != nil:
		c.Close()
	case first[0] == socksVersion:
		defer c.Close()
		p.serveSOCKS(c)
	case 'A' <= first[0] && first[0] <= 'Z', 'a' <= first[0] && first[0] <= 'z':
		c.SetDeadline(time.Time{}) // the HTTP server has its own
		select {
		case p.webConns <- c:
		case <-p.ctx.Done():
			c.Close()
		}
	default:
		c.Close()
	}
}

// authentic compares in constant time.
func (p *Proxy) authentic(user, password string) bool {
	u := subtle.ConstantTimeCompare([]byte(user), []byte(User))
	hash := sha256.Sum256([]byte(password))
	return u&subtle.ConstantTimeCompare(hash[:], p.password[:]) == 1
}

// What keeps a connection from standing, beside what the network says.
var (
	errNotOverlay = errors.New("the destination is not in the overlay, and this proxy leads nowhere else")
	errNoName     = errors.New("no node of the overlay has this name")
)

// connect connects to a destination; host is a name or an address.
func (p *Proxy) connect(ctx context.Context, network, host string, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	addrs, err := p.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, addr := range addrs {
		to := netip.AddrPortFrom(addr.Unmap(), port)
		var c net.Conn
		switch {
		case p.cfg.Overlay(to.Addr()):
			c, err = p.cfg.Dial(ctx, network, to)
		case p.cfg.Direct:
			c, err = new(net.Dialer).DialContext(ctx, network, to.String())
		default:
			err = errNotOverlay
		}
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (p *Proxy) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	if p.cfg.Resolve != nil {
		if addrs := p.cfg.Resolve(host); len(addrs) > 0 {
			return addrs, nil
		}
	}
	if !p.cfg.Direct {
		return nil, errNoName
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// timedOut tells an answer that did not come from one that says no.
func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}
