package relay

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"weft/stream"
	"weft/wire"
)

func TestFramesThatAreNoneEndTheStream(t *testing.T) {
	w := newRelay(t, nil).serveHTTP()
	peer := w.member(2).stream()
	for name, b := range map[string][]byte{
		"a type of none":    {99, 0, 0, 0},
		"reserved bits":     {5, 1, 0, 4, 0, 0, 0, 2},
		"a second Hello":    append(wire.AppendStreamHeader(nil, wire.StreamHello, 16), make([]byte, 16)...),
		"a long ping":       append(wire.AppendStreamHeader(nil, wire.StreamPing, 9), make([]byte, 9)...),
		"the relay's Bound": append(wire.AppendStreamHeader(nil, wire.StreamBound, 32), make([]byte, 32)...),
		"garbage":           []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		n := w.member(1).stream()
		n.out.control(func(dst []byte) []byte { return append(dst, b...) })
		select {
		case <-n.Done():
		case <-time.After(3 * time.Second):
			t.Errorf("%s: the stream goes on", name)
		}
	}
	// Frames that are well formed and carry nothing are only dropped.
	n := w.member(1).stream()
	n.out.control(func(dst []byte) []byte {
		dst = append(dst, 5, 0, 0, 0)             // not even a NodeID
		dst = append(dst, 5, 0, 0, 3, 1, 2, 3)    // a piece of one
		dst = append(dst, 5, 0, 0, 4, 0, 0, 0, 2) // no datagram
		return append(dst, 5, 0, 0, 5, 0, 0, 0, 2, 'x')
	})
	peer.want(1, "x")
	if d := w.relay.Stats().Drops[DropMalformed]; d != 3 {
		t.Errorf("%d are counted", d)
	}
}

func TestStreamsThatNeverGreetHoldUpNobody(t *testing.T) {
	w := newRelay(t, func(c *Config) { c.Limits.Handshakes = 5 }).serveHTTP()
	for range 20 {
		c, _, err := stream.Dial(t.Context(), stream.Options{URL: w.desc.URL, Path: wire.RelayPath, Proto: wire.RelayProto})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Read(make([]byte, 1)) // the relay's Hello: it has begun
	}
	greeting := func() int {
		w.relay.greetings.Lock()
		defer w.relay.greetings.Unlock()
		return len(w.relay.greeting)
	}
	eventually(t, "the silent ones are bounded", func() bool { return greeting() == 5 })
	w.member(1).stream()
	if n := greeting(); n > 4 {
		t.Errorf("%d are still greeting", n)
	}
}

func TestClosingTheRelayEndsItsStreams(t *testing.T) {
	w := newRelay(t, nil).serveHTTP()
	a := w.member(1).stream()
	w.relay.Close()
	a.wantEnd()
	if _, err := w.member(2).tryStream(); err == nil {
		t.Error("a closed relay takes a stream")
	}
}

// pipeSession is a session over a pipe in a bubble of its own time: both ends, the node's in the test's hands.
func pipeSession(t *testing.T, lifetime time.Duration) (w *world, m *member, node net.Conn, ended chan error) {
	w = newRelay(t, nil)
	m = w.member(1)
	m.ticket = m.signed(func(t *wire.Ticket) { t.NotAfter = time.Now().Add(lifetime) })
	here, there := net.Pipe()
	ss := &session{s: w.relay, conn: there}
	ended = make(chan error, 1)
	go func() {
		a, err := ss.greet()
		if err == nil {
			if err = ss.register(a); err == nil {
				err = ss.run()
			}
		}
		there.Close()
		ended <- err
	}()
	box, _ := wire.RelayBox(m.key, w.desc.Key)
	_, nonce, err := readFrame(here, wire.StreamHello, 16)
	if err != nil {
		t.Fatal(err)
	}
	here.Write(wire.AppendStreamBind(nil, nonce, m.ticket, box))
	if _, body, err := readFrame(here, wire.StreamBound, 100); err != nil {
		t.Fatal(err)
	} else if left, err := wire.ParseStreamBound(body, nonce, box); err != nil || left > lifetime || left < lifetime-2*time.Second {
		t.Fatalf("bound for %v, %v", left, err)
	}
	return w, m, here, ended
}

func TestAHalfDeadStreamIsEndedAfterUnansweredPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, node, ended := pipeSession(t, time.Hour)
		began, pings := time.Now(), 0
		go io.Copy(writerFunc(func(b []byte) (int, error) {
			if wire.StreamType(b[0]) == wire.StreamPing {
				pings++
			}
			return len(b), nil
		}), node)
		if err := <-ended; !errors.Is(err, errSilent) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("ended with %v", err)
		}
		took := time.Since(began)
		synctest.Wait()
		if took < deadAfter || took > deadAfter+beatEvery || pings < 2 {
			t.Errorf("after %v and %d pings", took, pings)
		}
		if st := w.relay.Stats(); st.Nodes != 0 || st.Streams != 0 {
			t.Errorf("left over: %+v", st)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestANodeThatAnswersPingsStaysAndOneWhoseTicketEndsGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lifetime = 10 * time.Minute
		_, _, node, ended := pipeSession(t, lifetime)
		began := time.Now()
		refused := false
		go func() {
			f := frameReader{r: node}
			for {
				b, err := f.next()
				if err != nil {
					return
				}
				switch wire.StreamType(b[0]) {
				case wire.StreamPing:
					node.Write(append(wire.AppendStreamHeader(nil, wire.StreamPong, 8), b[4:12]...))
				case wire.StreamRefused:
					refused = wire.Refusal(b[4]) == wire.RefusedExpired
				}
			}
		}()
		<-ended
		took := time.Since(began)
		synctest.Wait()
		if took < lifetime || took > lifetime+beatEvery+lingering || !refused {
			t.Errorf("ended after %v, told why: %v", took, refused)
		}
	})
}

func TestTheRelayTakesALaterTicketOnTheSameStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m, node, ended := pipeSession(t, time.Minute)
		box, _ := wire.RelayBox(m.key, w.desc.Key)
		ss := w.relay.nodes.get(nodeName{testNetwork, 1}).stream.Load()
		<-time.After(2 * rebindPause)
		later := m.signed(func(t *wire.Ticket) { t.NotAfter = time.Now().Add(time.Hour) })
		node.Write(wire.AppendStreamBind(nil, ss.nonce[:], later, box))
		_, body, err := readFrame(node, wire.StreamBound, 100)
		if err != nil {
			t.Fatal(err)
		}
		if left, err := wire.ParseStreamBound(body, ss.nonce[:], box); err != nil || left != time.Hour {
			t.Errorf("bound for %v, %v", left, err)
		}
		// Another node's ticket does not turn the stream into that node's.
		<-time.After(2 * rebindPause)
		other := w.member(2)
		otherBox, _ := wire.RelayBox(other.key, w.desc.Key)
		node.Write(wire.AppendStreamBind(nil, ss.nonce[:], other.ticket, otherBox))
		if kind, _, err := readFrame(node, wire.StreamRefused, 100); err != nil || kind != wire.StreamRefused {
			t.Errorf("%v, %v", kind, err)
		}
		<-ended
		if st := w.relay.Stats(); st.Nodes != 0 {
			t.Errorf("left over: %+v", st)
		}
	})
}
