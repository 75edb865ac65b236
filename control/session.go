package control

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net"
	"sync"
	"time"

	"weft"
	"weft/key"
	"weft/wire"
)

// A conn is the stream of messages to one machine, whose key has been proved by the time the first message is
// read. Package stream makes them. WriteMessage is called by one goroutine, ReadMessage by one other.
type conn interface {
	ReadMessage(limit int) ([]byte, error)
	WriteMessage(b []byte) error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
	RemoteAddr() net.Addr
	Close() error
}

// A session serves one stream. Two goroutines share it: one reads what the machine says, one writes what there is
// to say to it, and neither waits for the other.
type session struct {
	s       *Server
	conn    conn
	machine key.MachinePublic
	remote  string
	log     *slog.Logger

	// One of the two is set, by the writer, when the machine is let in.
	node  weft.NodeID
	relay weft.RelayID
	note  string // why the secret of an expired node does not let it in again

	ctx    context.Context // ends when the session is to end
	cancel context.CancelFunc
	once   sync.Once
	why    *weft.Error // set before ctx ends; nil: the machine has gone

	updates updates

	mu     sync.Mutex // also orders write deadlines
	pong   *wire.Beat
	mumble *weft.Error   // an answer to what was not understood
	notice chan struct{} // has a token when one of the two is set
}

// serve runs the session of a machine to its end.
func (s *Server) serve(m conn, machine key.MachinePublic) {
	c := &session{s: s, conn: m, machine: machine, remote: m.RemoteAddr().String(), notice: make(chan struct{}, 1)}
	c.log = s.log.With("machine", machine.Short())
	c.ctx, c.cancel = context.WithCancel(context.Background())
	stranger := sync.OnceFunc(func() { s.strangers.Add(-1) })
	defer stranger()
	defer c.conn.Close()
	if !s.enter(c) {
		return
	}
	defer s.leave(c)
	defer c.end(nil)

	hello, err := c.hello()
	if err == nil {
		err = s.check(hello)
	}
	if err == nil {
		err = s.do(context.Background(), func(t *tx) error { return t.admit(c, hello) })
	}
	read := make(chan struct{})
	hear := func(f func()) {
		go func() {
			defer close(read)
			f()
		}()
	}
	switch err {
	case nil:
		hear(c.read)
		stranger()
		c.write(hello)
		_ = s.do(context.Background(), func(t *tx) error { return t.disconnect(c) })
	case errSignIn: // those who wait are counted by themselves
		stranger()
		hear(c.hearPings)
		c.end(reason(c.awaitSignIn(hello)))
	default:
		c.log.Debug("machine is not let in", "remote", c.remote, "error", err)
		c.end(reason(err)) // before anything is read again, whose end would be the reason
		hear(c.read)
	}
	c.farewell(read)
	c.conn.Close()
	<-read
}

// farewell tells the machine why its stream ends, and leaves it the time to read that.
func (c *session) farewell(read <-chan struct{}) {
	if c.why == nil || c.send(wire.ServerMessage{Error: c.why}) != nil || c.why == errClosing {
		return
	}
	timer := time.NewTimer(lingerTimeout)
	defer timer.Stop()
	select {
	case <-read:
	case <-timer.C:
	}
}

// end makes the session end, for the first reason given. It does not wait.
func (c *session) end(why *weft.Error) {
	c.once.Do(func() {
		c.why = why
		c.cancel()
		c.mu.Lock() // a message on its way to a machine that does not read must not hold up the end
		_ = c.conn.SetWriteDeadline(time.Now().Add(lingerTimeout))
		c.mu.Unlock()
	})
}

// hello reads the first message.
func (c *session) hello() (*wire.Hello, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(helloTimeout))
	defer context.AfterFunc(c.ctx, func() { _ = c.conn.SetReadDeadline(time.Now()) })()
	b, err := c.conn.ReadMessage(wire.MaxNodeMessage)
	if err != nil {
		return nil, sentence(weft.CodeBadRequest, "the machine did not say who it is: %v", err)
	}
	m, err := wire.ParseNodeMessage(b)
	if err != nil || m.Hello == nil {
		return nil, sentence(weft.CodeBadRequest, "the first message must be Hello: is one of the two sides much older than the other?")
	}
	return m.Hello, nil
}

// read takes what the machine says until it says no more.
func (c *session) read() {
	defer c.end(nil)
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(SilenceTimeout))
		b, err := c.conn.ReadMessage(wire.MaxNodeMessage)
		if err != nil {
			c.log.Debug("stream ended", "remote", c.remote, "error", err)
			return
		}
		if c.ctx.Err() == nil {
			c.handle(b)
		}
	}
}

func (c *session) handle(b []byte) {
	m, err := wire.ParseNodeMessage(b)
	switch {
	case err != nil && m == wire.NodeMessage{} && json.Valid(b):
		c.say(nil, sentence(weft.CodeNotFound, "the server does not know this request: it is older than this machine's weft (it has %s)", weft.Version))
	case err != nil:
		c.end(sentence(weft.CodeBadRequest, "the server does not understand this machine: %v", err))
	case m.Hello != nil:
		c.end(sentence(weft.CodeBadRequest, "Hello is said once"))
	case m.Ping != nil:
		c.say(m.Ping, nil)
	case c.node == 0:
		c.say(nil, sentence(weft.CodeNotFound, "a relay has nothing to ask but Ping"))
	case m.Update != nil:
		c.updates.take(c, m.Update)
	case m.Logout != nil:
		if err := c.s.do(context.Background(), func(t *tx) error { return t.logout(c) }); err != nil {
			c.say(nil, reason(err))
		}
	}
}

// say leaves an answer for the writing side. A machine that asks faster than it reads gets the last answer.
func (c *session) say(pong *wire.Beat, mumble *weft.Error) {
	c.mu.Lock()
	if pong != nil {
		c.pong = pong
	}
	if mumble != nil {
		c.mumble = mumble
	}
	c.mu.Unlock()
	select {
	case c.notice <- struct{}{}:
	default:
	}
}

func (c *session) answers() []wire.ServerMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []wire.ServerMessage
	if c.pong != nil {
		out = append(out, wire.ServerMessage{Pong: c.pong})
	}
	if c.mumble != nil {
		out = append(out, wire.ServerMessage{Error: c.mumble})
	}
	c.pong, c.mumble = nil, nil
	return out
}

func (c *session) send(m wire.ServerMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.sendBytes(b)
}

func (c *session) sendBytes(b []byte) error {
	c.mu.Lock()
	if c.ctx.Err() == nil {
		_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
	c.mu.Unlock()
	err := c.conn.WriteMessage(b)
	if err != nil {
		c.end(nil)
	}
	return err
}

// welcome answers Hello.
func (c *session) welcome() error {
	name := c.s.Network()
	w := wire.Welcome{ServerVersion: weft.Version, Epoch: c.s.epoch, Node: c.node, Relay: c.relay, Network: hex.EncodeToString(name[:])}
	if c.relay != 0 {
		w.Signing = c.s.Signing()
	}
	return c.send(wire.ServerMessage{Welcome: &w})
}

// A subject is what a session tells its machine of, after the welcome.
type subject interface {
	// news says what is new in a snapshot and must be said by now. It returns after how long it wants to be asked
	// again at the latest, and whether it wants to be asked as soon as there is another snapshot. What ends the
	// session is an error.
	news(snap *snapshot, now time.Time) (wait time.Duration, soon bool, err error)
}

// write says what there is to say until the session ends.
func (c *session) write(h *wire.Hello) {
	if c.welcome() != nil {
		return
	}
	var about subject = &membership{c: c, epoch: h.Epoch, version: h.MapVersion, signsIn: h.SignIn}
	if c.relay != 0 {
		about = &station{c: c}
	}
	for {
		snap := c.s.now.Load()
		wait, soon, err := about.news(snap, time.Now())
		if err != nil {
			c.end(reason(err))
			return
		}
		superseded := snap.superseded
		if !soon {
			superseded = nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-superseded:
		case <-timer.C:
		case <-c.notice:
			for _, m := range c.answers() {
				if c.send(m) != nil {
					return
				}
			}
		case <-c.ctx.Done():
			return
		}
		timer.Stop()
	}
}
