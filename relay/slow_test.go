package relay

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"weft"
)

// One node stops reading. The others' datagrams go on, what is new for it is kept and what is old is dropped,
// and the relay's memory for it stays bounded.
func TestASlowReaderStallsNobodyElse(t *testing.T) {
	const queue = 256 << 10
	w := newRelay(t, func(c *Config) { c.Limits = Limits{QueueBytes: queue, QueueAge: time.Hour} }).serveHTTP()
	sender, quick := w.member(1).stream(), w.member(2).stream()

	// The slow one: a stream whose Deliver does not return.
	m := w.member(3)
	hold, first := make(chan struct{}), make(chan struct{}, 1)
	slowGot := make(chan string, 1<<16)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	slow, err := DialStream(ctx, StreamConfig{
		Relay: w.desc, NodeKey: m.key, Ticket: func() []byte { return m.ticket }, Logger: discard,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				c.(*net.TCPConn).SetReadBuffer(16 << 10)
			}
			return c, err
		},
		Deliver: func(_ weft.NodeID, datagrams [][]byte) {
			select {
			case first <- struct{}{}:
			default:
			}
			<-hold
			for _, d := range datagrams {
				slowGot <- string(d[:8])
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()

	const count, size = 6000, 1400
	payload := make([]byte, size)
	for i := range count {
		binary.BigEndian.PutUint64(payload, uint64(i))
		for sender.out.waitingBytes() > clientQueue/2 { // not faster than the relay takes it
			<-time.After(100 * time.Microsecond)
		}
		if err := sender.SendTo(3, [][]byte{payload}); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			sender.send(2, fmt.Sprint(i))
		}
	}
	<-first
	for i := 0; i < count; i += 10 {
		quick.want(1, fmt.Sprint(i))
	}
	if rtt, err := quick.Ping(t.Context()); err != nil || rtt > time.Second {
		t.Errorf("while one stands still another's ping takes %v (%v)", rtt, err)
	}
	node := w.relay.nodes.get(nodeName{testNetwork, 3})
	if n := node.stream.Load().out.waitingBytes(); n > queue || n < queue/2 {
		t.Errorf("%d bytes wait for the slow one", n)
	}
	dropped := w.relay.Stats().Drops[DropQueue]
	if dropped < 100 {
		t.Errorf("only %d were dropped: the slow one was not slow", dropped)
	}
	close(hold)
	// It gets the newest, in order.
	last := -1
	for last != count-1 {
		select {
		case s := <-slowGot:
			i := int(binary.BigEndian.Uint64([]byte(s)))
			if i <= last {
				t.Fatalf("datagram %d comes behind %d", i, last)
			}
			last = i
		case <-time.After(3 * time.Second):
			t.Fatalf("the newest datagram does not come: the last is %d", last)
		}
	}
}

func (q *queue) waitingBytes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

// A node reads slower than others send to it. What it gets is late by the bounds of queue, kernel and one write,
// not by the seconds that unbounded buffers hold.
func TestASlowReaderGetsWhatIsFresh(t *testing.T) {
	const age = 100 * time.Millisecond
	w := newRelay(t, func(c *Config) { c.Limits = Limits{QueueBytes: 8 << 20, QueueAge: age} }).serveHTTP()
	sender, m := w.member(1).stream(), w.member(2)
	began := time.Now()
	type arrival struct{ at, late time.Duration }
	arrivals := make(chan arrival, 1<<16)
	allowance := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	slow, err := DialStream(ctx, StreamConfig{
		Relay: w.desc, NodeKey: m.key, Ticket: func() []byte { return m.ticket }, Logger: discard,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				c.(*net.TCPConn).SetReadBuffer(32 << 10)
			}
			return c, err
		},
		Deliver: func(_ weft.NodeID, datagrams [][]byte) {
			for _, d := range datagrams {
				select {
				case <-allowance:
				case <-ctx.Done():
				}
				sent := time.Duration(binary.BigEndian.Uint64(d))
				arrivals <- arrival{time.Since(began), time.Since(began) - sent}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	go func() { // 1 MB/s
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			for range 10 {
				select {
				case allowance <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	payload := make([]byte, 1000)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < 2*time.Second { // 8 MB/s
		<-tick.C
		for range 80 {
			binary.BigEndian.PutUint64(payload, uint64(time.Since(began)))
			if err := sender.SendTo(2, [][]byte{payload}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var n int
	var worst time.Duration
	for len(arrivals) > 0 {
		if a := <-arrivals; a.at > time.Second {
			n, worst = n+1, max(worst, a.late)
		}
	}
	if n < 100 || worst > 8*age {
		t.Errorf("%d datagrams in the second second, the latest after %v", n, worst)
	}
	if w.relay.Stats().Drops[DropAge] == 0 {
		t.Error("nothing was dropped for its age")
	}
	t.Logf("at a quarter of what is sent, the latest is %v old", worst)
}
