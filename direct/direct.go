// Package direct connects two nodes by TCP, without a relay, where UDP does not get through between them and one takes
// connections of the other. Which connections are wanted, and what they are worth, is for package path to say; who the
// peers are, and what is done with what comes, for the node.
//
// # Silence
//
// Whoever listens on the internet is looked at by strangers. A [Connector] says nothing to them: no byte leaves before one
// message came that only a peer can have sealed, and that was not said before (package wire, Greeting). Until then a
// connection is a socket, a goroutine and 64 bytes, for five seconds at most; of those there are [Strangers] at most, and
// where more come the oldest has to go. So who opens many and says nothing ends his own: a peer speaks at once. To look at
// a greeting costs one AES-GCM of 28 bytes and no public-key operation, since the keys that two nodes share are known before.
// What a stranger learns is that something listens. Whoever does not want that says `weft set tcp=off`.
//
// A recorded first message that is said again is known by its time ([recent]); after this node has begun anew it is answered
// once, and shows nothing but that: the answer is sealed, and what follows it cannot be said by who only recorded.
//
// # One connection
//
// Both may dial at once, and one may dial again before the other knows that the old connection is dead. Each link of the
// one and each of the other are connected once: of two connections that were dialed by different sides the one of the node
// with the higher number stays, of two by the same side the later. Both ends come to the same.
//
// # What goes through
//
// Frames of a relay's stream ([relay.Pipe]): they wait in front of the connection, 1 MiB and half a second at most, and when it
// stalls the oldest are dropped; nobody who sends waits. Nothing of TCP's own is secret or believed: what goes through is
// WireGuard's, or sealed by the two nodes. Who sits on the way may end a connection, as he may drop a datagram.
package direct

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/key"
	"weft/relay"
	"weft/wire"
)

const (
	// Strangers is how many connections there are at most that have not said who they are.
	Strangers = 64
	// greetTimeout is how long each message of the greeting may take: a round trip, and two of TCP's first three
	// retransmissions (1 + 2 s, RFC 6298).
	greetTimeout = 5 * time.Second
	// dialTimeout bounds a Dial: at four addresses that answer nothing and one that does, as late as greetTimeout allows.
	dialTimeout = 10 * time.Second
	// dialNext is how long one address has before the next is tried beside it: RFC 8305's Connection Attempt Delay.
	dialNext = 250 * time.Millisecond
	// maxConns is how many connections one peer has at most: four links by four.
	maxConns = 16
)

// Config is what a Connector is made of. All fields are required.
type Config struct {
	Self weft.NodeID
	// Up is called with a new connection before anything of it is read, and Down when it has ended. They are called from
	// goroutines of the connection, and may wait.
	Up, Down func(*Conn)
	// Deliver takes datagrams that came by a connection, in order, as many as were read at once. They are valid, and its to
	// change, during the call.
	Deliver func(c *Conn, datagrams [][]byte)
	Logger  *slog.Logger
}

// A Conn is a connection to a peer, over which both have proved who they are.
type Conn struct {
	*relay.Pipe
	Peer   weft.NodeID
	Via    weft.Via    // the link of ours, and the other end
	Far    weft.LinkID // the peer's number of its link
	Dialed bool        // by this node
	self   weft.NodeID
}

// SendTo sends datagrams to the peer, whatever number is given: there is nobody else. It copies them and returns: what the
// connection cannot take soon enough is dropped, oldest first. The error is of one that has ended.
func (x *Conn) SendTo(_ weft.NodeID, datagrams [][]byte) error {
	return x.Pipe.SendTo(x.self, datagrams)
}

// SendAhead sends one datagram before those that wait.
func (x *Conn) SendAhead(_ weft.NodeID, b []byte) error { return x.Pipe.SendAhead(x.self, b) }

// A Connector listens, dials, and knows all connections. Its methods may be called at once.
type Connector struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup
	clock  atomic.Uint64 // the time of the last Hello

	mu        sync.Mutex
	peers     map[weft.NodeID]key.Box
	heard     map[weft.NodeID]*recent
	conns     map[weft.NodeID][]*Conn
	listeners map[weft.LinkID]*listener
	strangers []net.Conn // the oldest first
}

// New makes a Connector that knows nobody and listens nowhere.
func New(cfg Config) *Connector {
	c := &Connector{
		cfg: cfg, peers: map[weft.NodeID]key.Box{}, heard: map[weft.NodeID]*recent{}, conns: map[weft.NodeID][]*Conn{},
		listeners: map[weft.LinkID]*listener{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// SetPeers says who may connect, with what their frames are sealed with. Connections of others are closed.
func (c *Connector) SetPeers(peers map[weft.NodeID]key.Box) {
	c.mu.Lock()
	var over []*Conn
	for id, box := range c.peers {
		if now, ok := peers[id]; ok && now == box {
			continue
		}
		over = append(over, c.conns[id]...)
		delete(c.heard, id)
	}
	c.peers = peers
	c.mu.Unlock()
	for _, x := range over {
		x.Close()
	}
}

// Close ends everything, and returns when it has ended. Down is called for each connection.
func (c *Connector) Close() {
	c.cancel()
	c.mu.Lock()
	for link, l := range c.listeners {
		l.Close()
		delete(c.listeners, link)
	}
	for _, s := range c.strangers {
		s.Close()
	}
	var over []*Conn
	for _, list := range c.conns {
		over = append(over, list...)
	}
	c.mu.Unlock()
	for _, x := range over {
		x.Close()
	}
	c.ended.Wait()
}

// box is what a peer's frames are sealed with.
func (c *Connector) box(id weft.NodeID) (key.Box, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	box, ok := c.peers[id]
	return box, ok
}

// hello is a time for a Hello: no two are the same.
func (c *Connector) hello() uint64 {
	for {
		last := c.clock.Load()
		next := max(uint64(time.Now().UnixNano()), last+1)
		if c.clock.CompareAndSwap(last, next) {
			return next
		}
	}
}

var (
	errSurplus = errors.New("there is a connection between the two links already")
	errMany    = errors.New("the peer has as many connections as it may")
	errClosed  = errors.New("the node ends")
)

// admit makes a greeted connection one of the peer's, or says why not. What is closed for it is in the second result.
func (c *Connector) admit(x *Conn, box key.Box) (over []*Conn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, errClosed
	}
	if now, ok := c.peers[x.Peer]; !ok || now != box {
		return nil, errStranger // it is no peer any more
	}
	for _, other := range c.conns[x.Peer] {
		switch {
		case c.beats(other, x):
			return nil, errSurplus
		case other.Via.Link == x.Via.Link && other.Far == x.Far:
			over = append(over, other)
		}
	}
	if len(c.conns[x.Peer])-len(over) >= maxConns {
		return nil, errMany
	}
	c.conns[x.Peer] = append(c.conns[x.Peer], x)
	c.ended.Add(1)
	return over, nil
}

// beats reports whether a connection there is stays in place of a new one.
func (c *Connector) beats(there, x *Conn) bool {
	return there.Via.Link == x.Via.Link && there.Far == x.Far && there.Err() == nil &&
		there.Dialed != x.Dialed && there.Dialed == (c.cfg.Self > x.Peer)
}

// begin has a greeted connection carry datagrams from now on.
func (c *Connector) begin(x *Conn, conn net.Conn, box key.Box) error {
	_ = conn.SetDeadline(time.Time{})
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // what a connection still holds when it ends is late; and its other end hears of the end at once
	}
	x.self = c.cfg.Self
	x.Pipe = relay.NewPipe(conn, relay.PipeConfig{
		Name: "the peer at " + x.Via.Addr.String(),
		Deliver: func(src weft.NodeID, datagrams [][]byte) {
			if src == x.Peer {
				c.cfg.Deliver(x, datagrams)
			}
		},
	})
	over, err := c.admit(x, box)
	if err != nil {
		x.Close()
		return err
	}
	for _, o := range over {
		o.Close()
	}
	c.cfg.Up(x)
	x.Start()
	go func() {
		defer c.ended.Done()
		<-x.Done()
		c.mu.Lock()
		c.forget(x)
		c.mu.Unlock()
		c.cfg.Down(x)
	}()
	return nil
}

// forget drops a connection from the peer's. The lock is held.
func (c *Connector) forget(x *Conn) {
	list := c.conns[x.Peer]
	for i := range list {
		if list[i] == x {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if c.conns[x.Peer] = list; len(list) == 0 {
		delete(c.conns, x.Peer)
	}
}

// Find is the connection of a peer by a via, or nil.
func (c *Connector) Find(id weft.NodeID, via weft.Via) *Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.conns[id] {
		if x.Via == via {
			return x
		}
	}
	return nil
}

// viaOf is the via of a connection by a link.
func viaOf(link weft.LinkID, conn net.Conn) weft.Via {
	var at netip.AddrPort
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		at = a.AddrPort()
	}
	at = netip.AddrPortFrom(at.Addr().WithZone(""), at.Port())
	return weft.TCPVia(link, at)
}

// token is a random one.
func token(fill func([]byte)) (t wire.TxID) {
	fill(t[:])
	return t
}
