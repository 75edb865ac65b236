package relay

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/stream"
	"weft/wire"
)

var (
	errReplaced = errors.New("the node has opened another stream")
	errSilent   = errors.New("nothing was heard any more")
	errEnded    = errors.New("the node's ticket has ended, or was revoked")
)

const (
	// lingering is how long a stream that was refused may take to hear why.
	lingering = time.Second
	// rebindPause is how long after one Bind another is looked into.
	rebindPause = time.Second
)

// session is a node's stream, at the relay.
type session struct {
	s     *Server
	conn  net.Conn
	nonce [wire.StreamNonceSize]byte
	node  *node
	out   *queue
	ends  atomic.Int64 // of the ticket, on the server's clock; 0: the session is over
	until atomic.Int64 // the same in Unix time, which counts where the machine's clock was set meanwhile
	heard atomic.Int64 // when the node last said anything
	bound time.Duration
	ahead bool // of a writer; the reader's
	once  sync.Once
	why   error // of its end
}

// ServeHTTP serves the stream of one node, to its end. Mount it at wire.RelayPath.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, err := stream.Accept(w, r, wire.RelayProto)
	if err != nil {
		return // answered
	}
	defer conn.Close()
	tune(conn)
	ss := &session{s: s, conn: conn}
	s.greets(conn)
	defer s.greeted(conn)
	_ = conn.SetDeadline(time.Now().Add(greetTimeout))
	a, err := ss.greet()
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err == nil {
		err = ss.register(a)
	}
	s.greeted(conn)
	if err == nil {
		err = ss.run()
	}
	s.log.Debug("a node's stream to the relay has ended", "remote", conn.RemoteAddr(), "error", err)
}

// greets notes a connection whose greeting has begun, and ends another's if they are too many.
func (s *Server) greets(c net.Conn) {
	s.greetings.Lock()
	defer s.greetings.Unlock()
	if len(s.greeting) >= s.limits.Handshakes {
		for other := range s.greeting { // in no order
			delete(s.greeting, other)
			go other.Close()
			break
		}
	}
	s.greeting[c] = struct{}{}
}

func (s *Server) greeted(c net.Conn) {
	s.greetings.Lock()
	defer s.greetings.Unlock()
	delete(s.greeting, c)
}

// greet admits the node at the other end, or refuses it.
func (ss *session) greet() (*admission, error) {
	if _, err := rand.Read(ss.nonce[:]); err != nil {
		return nil, err
	}
	hello := append(wire.AppendStreamHeader(nil, wire.StreamHello, len(ss.nonce)), ss.nonce[:]...)
	if _, err := ss.conn.Write(hello); err != nil {
		return nil, err
	}
	_, body, err := readFrame(ss.conn, wire.StreamBind, wire.TicketSize+key.Overhead)
	if err != nil {
		return nil, fmt.Errorf("greeting: %w", err)
	}
	a, why := ss.examine(body)
	if why != wire.RefusedNot {
		return nil, ss.refuseNow(why)
	}
	return a, nil
}

func (ss *session) refuseNow(why wire.Refusal) error {
	ss.s.count.refused.Add(1)
	_ = ss.conn.SetDeadline(time.Now().Add(lingering))
	_, _ = ss.conn.Write(wire.AppendStreamRefused(nil, why))
	return errors.New(why.String())
}

func (ss *session) examine(body []byte) (*admission, wire.Refusal) {
	ticket, proof, err := wire.ParseStreamBind(body)
	if err != nil {
		return nil, wire.RefusedForged
	}
	return ss.s.examine(ticket, func(box key.Box) bool { return wire.StreamBindProves(ss.nonce[:], ticket, proof, box) })
}

// register makes the stream the node's, in place of another, and answers its Bind.
func (ss *session) register(a *admission) error {
	s := ss.s
	s.mu.Lock()
	n, why := s.admit(a)
	if why != wire.RefusedNot {
		s.mu.Unlock()
		return ss.refuseNow(why)
	}
	defer s.mu.Unlock()
	if s.sessions == nil {
		s.forget(n)
		return errClosed
	}
	ss.node = n
	ss.out = newQueue(s.limits.QueueBytes, s.limits.QueueAge, s.now, s.count.drop)
	ss.admitted(a)
	s.sessions[ss] = struct{}{}
	s.count.streams.Add(1)
	if old := n.stream.Swap(ss); old != nil {
		old.end(errReplaced)
	}
	return nil
}

// admitted takes the end of a ticket over and says so.
func (ss *session) admitted(a *admission) {
	s := ss.s
	ss.bound = s.now()
	ss.ends.Store(int64(a.ends(s)))
	ss.until.Store(a.ticket.NotAfter.Unix())
	s.count.binds.Add(1)
	ss.out.control(func(dst []byte) []byte {
		return wire.AppendStreamBound(dst, ss.nonce[:], a.ends(s)-s.now(), a.box)
	})
}

// run carries frames until the stream ends.
func (ss *session) run() error {
	s := ss.s
	ss.heard.Store(int64(s.now()))
	written := make(chan error, 1)
	go func() {
		err := ss.out.writer(ss.conn, func(frames, bytes int) {
			s.count.streamDatagrams.Add(uint64(frames))
			s.count.streamBytes.Add(uint64(bytes))
		}, ss.beat)
		ss.conn.Close() // which ends the reader
		written <- err
	}()
	ss.end(ss.read()) // the writer writes what is urgent, and closes
	if err := <-written; err != nil {
		s.log.Debug("writing to a node's stream", "node", ss.node.name.id, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, ss)
	s.count.streams.Add(-1)
	ss.node.stream.CompareAndSwap(ss, nil)
	s.forget(ss.node)
	return ss.why
}

// end has the stream end: frames neither come nor go any more, and its goroutines return soon.
func (ss *session) end(why error) {
	ss.once.Do(func() {
		ss.why = why
		ss.ends.Store(0)
		ss.out.close()
		// What waits in a read or in a write that does not get on is woken here; what is urgent is out by then.
		time.AfterFunc(lingering, func() { ss.conn.Close() })
	})
}

// refuse ends the stream and says why.
func (ss *session) refuse(why wire.Refusal) {
	ss.out.control(func(dst []byte) []byte { return wire.AppendStreamRefused(dst, why) })
	ss.end(errEnded)
}

// beat is called every beatEvery.
func (ss *session) beat() error {
	now := ss.s.now()
	switch silent := now - time.Duration(ss.heard.Load()); {
	case int64(now) >= ss.ends.Load(), ss.s.clock().Unix() > ss.until.Load():
		ss.refuse(wire.RefusedExpired)
	case silent >= deadAfter:
		return errSilent
	case silent >= beatEvery:
		ss.out.control(func(dst []byte) []byte {
			return append(wire.AppendStreamHeader(dst, wire.StreamPing, 8), 0, 0, 0, 0, 0, 0, 0, 0)
		})
	}
	return nil
}

// read takes in what the node sends.
func (ss *session) read() error {
	f := frameReader{r: ss.conn}
	defer f.close()
	var w *host.UDPWriter
	for {
		b, err := f.next()
		if err != nil {
			return err
		}
		now := ss.s.now()
		ss.heard.Store(int64(now))
		if int64(now) >= ss.ends.Load() {
			return errEnded
		}
		for len(b) > 0 {
			if wire.StreamType(b[0]) == wire.StreamData {
				run, count := streamRun(b)
				w = ss.forward(now, b[:run], count, w)
				b = b[run:]
				continue
			}
			n := frameSize(b)
			if err := ss.control(wire.StreamType(b[0]), b[wire.StreamHeaderSize:n]); err != nil {
				return err
			}
			b = b[n:]
		}
		if w != nil {
			ss.s.flush(w)
			w = nil
		}
		if ss.ahead {
			ss.ahead = false
			runtime.Gosched()
		}
	}
}

// streamRun returns how many bytes, and how many frames, from the first on are Data frames for the same node.
func streamRun(b []byte) (run, count int) {
	const nodeID = wire.StreamHeaderSize // and four bytes on
	for run < len(b) {
		n := frameSize(b[run:])
		if count > 0 && (n <= wire.StreamDataPrefix || wire.StreamType(b[run]) != wire.StreamData ||
			string(b[run+nodeID:run+nodeID+4]) != string(b[nodeID:nodeID+4])) {
			break
		}
		run += n
		count++
		if n <= wire.StreamDataPrefix {
			break // no datagram: a run of its own
		}
	}
	return run, count
}

var writers = sync.Pool{New: func() any { return host.NewUDPWriter() }}

// flush sends what a session's writer holds and puts the writer back.
func (s *Server) flush(w *host.UDPWriter) {
	c := w.Flush()
	s.count.udpDatagrams.Add(uint64(c.Datagrams))
	s.count.udpBytes.Add(uint64(c.Bytes))
	s.count.drop(DropFull, c.Full)
	s.count.drop(DropRefused, c.Failed)
	writers.Put(w)
}

// forward passes a run of Data frames for one node on. What goes out by UDP waits in the writer it returns.
func (ss *session) forward(now time.Duration, b []byte, count int, w *host.UDPWriter) *host.UDPWriter {
	s := ss.s
	if frameSize(b) <= wire.StreamDataPrefix {
		s.count.drop(DropMalformed, count)
		return w
	}
	if s.limited(ss.node, now, len(b), count) {
		return w
	}
	to := nodeName{network: ss.node.name.network, id: frameNode(b)}
	n := s.nodes.get(to)
	if n == nil {
		s.count.drop(DropNoSuch, count)
		return w
	}
	if other := n.session(now); other != nil {
		for at := 0; at < len(b); at += frameSize(b[at:]) {
			setFrameNode(b[at:], ss.node.name.id)
		}
		ss.ahead = other.out.frames(b) || ss.ahead
		return w
	}
	at := n.binding(now)
	if at == nil {
		s.count.drop(DropNoSuch, count)
		return w
	}
	if w == nil {
		w = writers.Get().(*host.UDPWriter)
	}
	for len(b) > 0 {
		if n := frameSize(b); n > maxUDP {
			s.count.drop(DropTooLong, 1)
			b = b[n:]
			continue
		}
		run, size := toUDP(b, ss.node.name.id)
		w.Add(&at.dest, b[:run], size)
		b = b[run:]
	}
	return w
}

// maxUDP is the longest UDP payload in bytes that both families carry.
const maxUDP = 65487

// toUDP turns the Data frames that b begins with, as many as can leave as one run, into UDP Data frames from a
// node, where they are: the prefixes are of one length.
func toUDP(b []byte, from weft.NodeID) (run, size int) {
	size = frameSize(b)
	for run < len(b) {
		n := frameSize(b[run:])
		if n > size {
			break
		}
		wire.AppendData(b[run:run], from)
		run += n
		if n < size {
			break // the last of a run may be shorter
		}
	}
	return run, size
}

// control deals with a frame that is not Data.
func (ss *session) control(t wire.StreamType, body []byte) error {
	switch {
	case t == wire.StreamPing && len(body) == 8:
		ss.out.control(func(dst []byte) []byte {
			return append(wire.AppendStreamHeader(dst, wire.StreamPong, 8), body...)
		})
	case t == wire.StreamPong && len(body) == 8:
	case t == wire.StreamBind:
		if ss.s.now()-ss.bound < rebindPause {
			return nil
		}
		return ss.rebind(body)
	default:
		return wire.ErrFrame
	}
	return nil
}

// rebind takes a later ticket.
func (ss *session) rebind(body []byte) error {
	a, why := ss.examine(body)
	s := ss.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == wire.RefusedNot {
		var n *node
		if n, why = s.admit(a); why == wire.RefusedNot && n != ss.node {
			why = wire.RefusedForged // another node's ticket, or this one was dropped meanwhile
			s.forget(n)
		}
	}
	if why != wire.RefusedNot {
		s.count.refused.Add(1)
		ss.refuse(why)
		return errEnded
	}
	if ss.ends.Load() != 0 {
		ss.admitted(a)
	}
	return nil
}
