package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"weft"
	"weft/wire"
)

// clientOverPipe makes a Stream whose relay is the test.
func clientOverPipe(t *testing.T, ticket func(m *member) []byte, deliver func(weft.NodeID, [][]byte)) (*Stream, net.Conn, *member) {
	t.Helper()
	w := newRelay(t, nil)
	m := w.member(1)
	here, there := net.Pipe()
	w.desc.URL = "http://relay.test"
	greeted := make(chan error, 1)
	nonce := make([]byte, 16)
	go func() {
		greeted <- func() error {
			r, err := http.ReadRequest(bufioReader(there))
			if err != nil {
				return err
			}
			fmt.Fprintf(there, "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
			there.Write(append(wire.AppendStreamHeader(nil, wire.StreamHello, 16), nonce...))
			_, body, err := readFrame(there, wire.StreamBind, 1000)
			if err != nil {
				return err
			}
			tk, _ := wire.ParseTicket(body[:wire.TicketSize])
			box, _ := wire.RelayBox(w.key, m.key.Public())
			_, err = there.Write(wire.AppendStreamBound(nil, nonce, time.Until(tk.NotAfter), box))
			return err
		}()
	}()
	if ticket == nil {
		ticket = func(m *member) []byte { return m.ticket }
	}
	s, err := DialStream(t.Context(), StreamConfig{
		Relay: w.desc, NodeKey: m.key, Ticket: func() []byte { return ticket(m) }, Logger: discard, Deliver: deliver,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return here, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-greeted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); there.Close() })
	return s, there, m
}

func TestAStreamWhoseRelayFallsSilentEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, relay, _ := clientOverPipe(t, nil, nil)
		go io.Copy(io.Discard, relay)
		began := time.Now()
		<-s.Done()
		if took := time.Since(began); took < deadAfter || took > deadAfter+2*beatEvery {
			t.Errorf("after %v: %v", took, s.Err())
		}
	})
}

// A relay that takes nothing makes nobody wait, and costs no more than the bound; the newest is what is left.
func TestSendingIntoAStuckStreamDropsTheOldestAndNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, relay, _ := clientOverPipe(t, nil, nil)
		payload := make([]byte, 1000)
		const count = 10_000
		began := time.Now()
		for i := range count {
			binary.BigEndian.PutUint64(payload, uint64(i))
			if err := s.SendTo(2, [][]byte{payload}); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				synctest.Wait() // it is being written
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the sender waited %v", waited)
		}
		synctest.Wait()
		if n := s.out.waitingBytes(); n > clientQueue || n < clientQueue*9/10 {
			t.Errorf("%d bytes wait", n)
		}
		last, first, got := -1, -1, 0
		f := frameReader{r: relay}
		for last != count-1 {
			b, err := f.next()
			if err != nil {
				t.Fatal(err)
			}
			for len(b) > 0 {
				n := frameSize(b)
				i := int(binary.BigEndian.Uint64(b[8:]))
				if i <= last {
					t.Fatalf("%d behind %d", i, last)
				}
				if first < 0 && last >= 0 && i != last+1 {
					first = i
				}
				last = i
				got++
				b = b[n:]
			}
		}
		if lost := int(s.Lost()); lost+got != count || lost < count/2 || first < lost {
			t.Errorf("%d sent, %d came, %d lost; the gap ends at %d", count, got, lost, first)
		}
	})
}

func TestWhatWaitedTooLongIsNotSentAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, relay, _ := clientOverPipe(t, nil, nil)
		s.SendTo(2, [][]byte{[]byte("taken at once")})
		synctest.Wait()
		s.SendTo(2, [][]byte{[]byte("too old")})
		<-time.After(clientAge + time.Second)
		s.SendTo(2, [][]byte{[]byte("fresh")})
		f := frameReader{r: relay}
		for _, want := range []string{"taken at once", "fresh"} {
			b, err := f.next()
			if err != nil || string(b[8:]) != want {
				t.Errorf("%q, %v; want %q", b, err, want)
			}
		}
		if s.Lost() != 1 {
			t.Errorf("%d lost", s.Lost())
		}
	})
}

func TestALaterTicketIsPresentedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lifetime = 10 * time.Minute
		s, relay, m := clientOverPipe(t, func(m *member) []byte {
			return m.signed(func(t *wire.Ticket) { t.NotAfter = time.Now().Add(lifetime) })
		}, nil)
		box, _ := wire.RelayBox(m.w.key, m.key.Public())
		began := time.Now()
		f := frameReader{r: relay}
		binds := 0
		for binds < 3 {
			b, err := f.next()
			if err != nil {
				t.Fatalf("after %v: %v (%v)", time.Since(began), err, s.Err())
			}
			for ; len(b) > 0; b = b[frameSize(b):] {
				switch wire.StreamType(b[0]) {
				case wire.StreamPing:
					relay.Write(append(wire.AppendStreamHeader(nil, wire.StreamPong, 8), b[4:12]...))
				case wire.StreamBind:
					binds++
					tk, err := wire.ParseTicket(b[4 : 4+wire.TicketSize])
					if left := time.Until(tk.NotAfter); err != nil || left < lifetime-time.Minute {
						t.Errorf("a ticket with %v left", left)
					}
					relay.Write(wire.AppendStreamBound(nil, make([]byte, 16), lifetime, box))
				}
			}
		}
		if took := time.Since(began); took < lifetime || took > 2*lifetime {
			t.Errorf("three tickets in %v", took)
		}
	})
}

func TestDatagramsOfOneReadComeTogether(t *testing.T) {
	type call struct {
		from weft.NodeID
		n    int
	}
	var calls []call
	synctest.Test(t, func(t *testing.T) {
		_, relay, _ := clientOverPipe(t, nil, func(src weft.NodeID, datagrams [][]byte) {
			calls = append(calls, call{src, len(datagrams)})
			for _, d := range datagrams {
				if !bytes.Equal(d, bytes.Repeat([]byte{byte(src)}, len(d))) {
					t.Errorf("%d's datagram is %x", src, d)
				}
			}
		})
		var b []byte
		for _, from := range []byte{7, 7, 7, 8, 8, 7} {
			b = append(wire.AppendStreamData(b, weft.NodeID(from), 5), bytes.Repeat([]byte{from}, 5)...)
		}
		relay.Write(b)
		synctest.Wait()
	})
	if got := fmt.Sprint(calls); got != "[{7 3} {8 2} {7 1}]" {
		t.Errorf("delivered %s", got)
	}
}
