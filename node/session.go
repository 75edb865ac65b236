package node

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"weft"
	"weft/stream"
	"weft/wire"
)

// Intervals of the session.
const (
	// retryFirst and retryLast bound the wait between tries; it doubles, and half of it is random, so that a
	// restarted server is not met by everybody at once.
	retryFirst = 250 * time.Millisecond
	retryLast  = 30 * time.Second
	// beatEvery is how often the session asks for a sign of life, below the 60 s after which proxies commonly
	// end an idle connection (nginx proxy_read_timeout); beatPatience is how long it waits for any.
	beatEvery    = 20 * time.Second
	beatPatience = 10 * time.Second
)

// A sessionSink takes what the server says. Its methods are called from the session's goroutine, in order.
type sessionSink interface {
	welcomed(wire.Welcome)
	gotMap(weft.NetworkMap)
	gotChange(weft.Change)
	refused(*weft.Error)
	signIn(wire.SignIn)
}

// A coordinator is where the node's maps come from: it hands them to a sessionSink. Its methods but run may be called at
// any time from any goroutine.
type coordinator interface {
	// run goes on until ctx ends or the node is refused for good.
	run(ctx context.Context)
	// logout asks that the others forget the node; it reports whether there was somebody to ask.
	logout() bool
	serverStatus() weft.ServerStatus
}

// A session keeps the stream to the coordinator up for as long as its context lives.
type session struct {
	state  *State
	sink   sessionSink
	outbox *outbox
	log    *slog.Logger

	mu     sync.Mutex
	status weft.ServerStatus
	heard  time.Time
	conn   *stream.Control
	epoch  string
}

func newSession(state *State, sink sessionSink, out *outbox, log *slog.Logger) *session {
	return &session{state: state, sink: sink, outbox: out, log: log}
}

// run connects, and connects again, until ctx ends or the server refuses this node for good.
func (s *session) run(ctx context.Context) {
	wait := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		var refusal *weft.Error
		refused := errors.As(err, &refusal) && (refusal.Code.Permanent() || refusal.Code == weft.CodeWrongServer)
		s.lost(err, refused)
		if refused {
			s.sink.refused(refusal)
			if refusal.Code.Permanent() {
				return
			}
			wait = retryLast // the right server may come back, but not in a moment
		}
		if time.Since(began) > retryLast {
			wait = retryFirst
		}
		pause := wait/2 + rand.N(wait)
		s.log.Debug("no connection to the server", "error", err, "retry", pause)
		select {
		case <-ctx.Done():
			return
		case <-s.outbox.kicks:
			wait = retryFirst
		case <-time.After(pause):
			wait = min(2*wait, retryLast)
		}
	}
}

// once is one connection, from dialling to its end.
func (s *session) once(ctx context.Context) error {
	id := s.state.Identity()
	hello := wire.Hello{
		Version: weft.Version, OS: runtime.GOOS, Secret: id.Secret, NodeKey: id.Node.Public(),
		Rotation: id.Rotation, Name: id.Name, SignIn: true,
	}
	if m := s.state.Map(); m != nil {
		s.mu.Lock()
		hello.Epoch, hello.MapVersion = s.epoch, m.Version
		s.mu.Unlock()
	}
	conn, err := stream.DialControlBy(ctx, dialOwn, id.URL, id.Fingerprint, id.Machine, id.Server, hello)
	if err != nil {
		return err
	}
	defer conn.Close()

	ended := make(chan struct{})
	defer close(ended)
	asked := false
	for {
		m, err := conn.Hear()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.heard = time.Now()
		welcomed := s.conn != nil
		s.mu.Unlock()
		switch {
		case m.Welcome != nil && !welcomed:
			if err := s.state.Welcomed(); err != nil { // a full disk is no reason to be without the server
				s.log.Warn("the token's secret, which is of no more use, stays in the state directory", "error", err)
			}
			s.connected(conn, *m.Welcome)
			s.outbox.again()
			go s.talk(conn, ended, true)
			s.sink.welcomed(*m.Welcome)
		case m.Map != nil:
			s.sink.gotMap(*m.Map)
		case m.Change != nil:
			s.sink.gotChange(*m.Change)
		case m.SignIn != nil:
			s.sink.signIn(*m.SignIn)
			if !welcomed && !asked {
				asked = true
				go s.talk(conn, ended, false)
			}
		case m.Error != nil && m.Error.Code.Held() && welcomed: // the map comes when that has changed
			s.sink.refused(m.Error)
		case m.Error != nil:
			if m.Error.Code.Permanent() || !welcomed { // the answer to Hello
				return m.Error
			}
			s.log.Debug("the server could not do what was asked", "error", m.Error)
		}
	}
}

// talk says what there is to say, to a server that has welcomed the node, asks for signs of life, and ends a connection that
// gives none.
func (s *session) talk(conn *stream.Control, ended <-chan struct{}, welcomed bool) {
	defer conn.Close()
	changed := s.outbox.changed
	if !welcomed {
		changed = nil
	}
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	var asked time.Time
	var due <-chan time.Time
	for n := uint64(1); ; {
		var m wire.NodeMessage
		select {
		case <-ended:
			return
		case <-changed:
			if m.Update = s.outbox.latest(); m.Update == nil {
				continue
			}
		case <-due:
			if due = nil; s.lastHeard().Before(asked) {
				s.log.Info("the server is silent; connecting again")
				return
			}
			continue
		case <-s.outbox.kicks:
		case <-tick.C:
		}
		if m.Update == nil {
			m.Ping, asked, due = &wire.Beat{N: n}, time.Now(), time.After(beatPatience)
			n++
		}
		if err := conn.Say(m); err != nil {
			return
		}
	}
}

func (s *session) lastHeard() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard
}

// An outbox holds the latest of what the coordinator should know of this node, and nudges to the session. It
// outlives sessions.
type outbox struct {
	changed chan struct{} // holds a token when the latest has not been said
	kicks   chan struct{} // holds one when the network changed: try, or check, at once

	mu     sync.Mutex
	update *wire.Update
}

func newOutbox() *outbox {
	return &outbox{changed: make(chan struct{}, 1), kicks: make(chan struct{}, 1)}
}

func (o *outbox) put(u wire.Update) {
	o.mu.Lock()
	o.update = &u
	o.mu.Unlock()
	o.again()
}

// again has the latest said once more: there is a new connection.
func (o *outbox) again() { nudge(o.changed) }

// kick makes the session try, or check its connection, at once.
func (o *outbox) kick() { nudge(o.kicks) }

// nudge leaves a token in a channel that holds one, unless there is one.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (o *outbox) latest() *wire.Update {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.update
}

// logout asks the server to remove the node; it reports whether there was a connection to ask over.
func (s *session) logout() bool {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	return conn != nil && conn.Say(wire.NodeMessage{Logout: &wire.Logout{}}) == nil
}

func (s *session) connected(conn *stream.Control, w wire.Welcome) {
	s.mu.Lock()
	s.conn, s.epoch = conn, w.Epoch
	s.status = weft.ServerStatus{Connected: true, Since: time.Now(), Transport: string(conn.Info().Transport)}
	s.mu.Unlock()
	s.log.Info("connected to the server", "transport", conn.Info().Transport, "tls", conn.Info().TLS)
}

// lost notes that there is no connection, and says so once. A refusal is the sink's to tell.
func (s *session) lost(err error, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = nil
	if s.status.Connected || s.status.Since.IsZero() {
		s.status = weft.ServerStatus{Since: time.Now()}
		switch {
		case refused:
		case s.state.Map() == nil:
			s.log.Warn("the server is not reached yet; trying again", "error", err)
		default:
			s.log.Warn("no connection to the server; tunnels go on with what is known", "error", err)
		}
	}
	if err != nil {
		s.status.Error = err.Error()
	}
}

// serverStatus is what weft status shows of the connection.
func (s *session) serverStatus() weft.ServerStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.URL = s.state.Identity().URL
	if !s.heard.IsZero() {
		st.MapAge = time.Since(s.heard).Seconds()
	}
	return st
}
