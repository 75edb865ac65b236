package direct

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/wire"
)

var (
	errStranger = errors.New("who connected is no peer")
	errReplay   = errors.New("the greeting was said before")
	errGreeting = errors.New("the answer is to another greeting")
)

// remembered is how many times of a peer's Hellos are remembered. They may overtake each other where a peer dials several
// addresses at once by several links.
const remembered = 32

// A recent is the times of a peer's last Hellos, in order. The zero value remembers none.
type recent struct {
	times [remembered]uint64
	n     int
}

// take reports whether a time is new, and remembers it then.
func (r *recent) take(t uint64) bool {
	i, known := slices.BinarySearch(r.times[:r.n], t)
	switch {
	case known || r.n == remembered && i == 0:
		return false
	case r.n == remembered:
		copy(r.times[:i-1], r.times[1:i])
		r.times[i-1] = t
	default:
		copy(r.times[i+1:r.n+1], r.times[i:r.n])
		r.times[i] = t
		r.n++
	}
	return true
}

// read reads one greeting of a kind, and not a byte more.
func read(conn net.Conn, kind wire.Kind, box func(weft.NodeID) (key.Box, bool)) (g wire.Greeting, from weft.NodeID, err error) {
	var b [wire.GreetingSize]byte
	_ = conn.SetReadDeadline(time.Now().Add(greetTimeout))
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return g, 0, err
	}
	if from, err = wire.GreetingSender(b[:], kind); err != nil {
		return g, 0, err
	}
	shared, ok := box(from)
	if !ok {
		return g, 0, errStranger
	}
	g, err = wire.OpenGreeting(b[:], kind, shared)
	return g, from, err
}

// say sends one greeting.
func (c *Connector) say(conn net.Conn, box key.Box, g wire.Greeting) error {
	_ = conn.SetWriteDeadline(time.Now().Add(greetTimeout))
	_, err := conn.Write(wire.AppendGreeting(nil, box, c.cfg.Self, g))
	return err
}

// welcome is the greeting at the end that listens.
func (c *Connector) welcome(conn net.Conn, link weft.LinkID) error {
	hello, id, err := read(conn, wire.KindHello, c.box)
	if err != nil {
		return err
	}
	box, ok := c.box(id)
	if !ok || !c.fresh(id, hello.Time) {
		return errReplay
	}
	mine := token(func(b []byte) { rand.Read(b) })
	if err := c.say(conn, box, wire.Greeting{Kind: wire.KindWelcome, Answers: hello.Token, Token: mine, Link: link}); err != nil {
		return err
	}
	confirm, from, err := read(conn, wire.KindConfirm, c.box)
	switch {
	case err != nil:
		return err
	case from != id || confirm.Answers != mine:
		return errGreeting
	}
	c.known(conn)
	return c.begin(&Conn{Peer: id, Via: viaOf(link, conn), Far: hello.Link}, conn, box)
}

// fresh reports whether a peer's Hello was not said before.
func (c *Connector) fresh(id weft.NodeID, t uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.heard[id]
	if r == nil {
		r = &recent{}
		c.heard[id] = r
	}
	return r.take(t)
}

// A greeted is a connection whose other end has proved to be the peer.
type greeted struct {
	conn net.Conn
	far  weft.LinkID
	last wire.TxID // the Welcome's token
	err  error
}

// Dial connects to a peer from a link, by its device or with "" as the routes say, at whichever of the addresses takes it
// first. Up has been called when it returns without an error.
func (c *Connector) Dial(id weft.NodeID, link weft.LinkID, device string, addrs []netip.AddrPort) error {
	box, ok := c.box(id)
	if !ok {
		return errStranger
	}
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	answers := make(chan greeted)
	under := 0
	next := time.NewTimer(0)
	defer next.Stop()
	err := errors.New("it has no address that takes connections")
	for len(addrs) > 0 || under > 0 {
		select {
		case <-next.C:
			if len(addrs) == 0 {
				continue
			}
			to := addrs[0]
			addrs = addrs[1:]
			under++
			go func() {
				g := c.call(ctx, box, link, device, to)
				select {
				case answers <- g:
				case <-ctx.Done():
					g.close()
				}
			}()
			next.Reset(dialNext)
		case g := <-answers:
			under--
			if g.err == nil {
				cancel() // the others
				return c.confirm(id, link, box, g)
			}
			err = g.err
			next.Reset(0)
		case <-ctx.Done():
			return fmt.Errorf("nothing answered: %w", ctx.Err())
		}
	}
	return err
}

func (g greeted) close() {
	if g.conn != nil {
		g.conn.Close()
	}
}

// call connects to one address and greets who is there, up to the answer.
func (c *Connector) call(ctx context.Context, box key.Box, link weft.LinkID, device string, to netip.AddrPort) greeted {
	d := net.Dialer{Control: host.BindTo(device, false)}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return greeted{err: err}
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	mine := token(func(b []byte) { rand.Read(b) })
	err = c.say(conn, box, wire.Greeting{Kind: wire.KindHello, Time: c.hello(), Token: mine, Link: link})
	if err == nil {
		var g wire.Greeting
		g, _, err = read(conn, wire.KindWelcome, func(weft.NodeID) (key.Box, bool) { return box, true })
		switch {
		case err != nil:
		case g.Answers != mine:
			err = errGreeting
		default:
			return greeted{conn: conn, far: g.Link, last: g.Token}
		}
	}
	conn.Close()
	return greeted{err: fmt.Errorf("%s did not prove to be the peer: %w", to, err)}
}

// confirm ends the greeting at the end that dialed.
func (c *Connector) confirm(id weft.NodeID, link weft.LinkID, box key.Box, g greeted) error {
	x := &Conn{Peer: id, Via: viaOf(link, g.conn), Far: g.far, Dialed: true}
	if c.surplus(x) {
		g.conn.Close()
		return nil // which is as good
	}
	_ = g.conn.SetDeadline(time.Time{})
	if err := c.say(g.conn, box, wire.Greeting{Kind: wire.KindConfirm, Answers: g.last, Link: link}); err != nil {
		g.conn.Close()
		return err
	}
	if err := c.begin(x, g.conn, box); !errors.Is(err, errSurplus) {
		return err
	}
	return nil
}

// surplus reports whether a connection would be closed at once.
func (c *Connector) surplus(x *Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.conns[x.Peer], func(o *Conn) bool { return c.beats(o, x) })
}
