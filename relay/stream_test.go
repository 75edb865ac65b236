package relay

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/key"
	"weft/stream"
	"weft/wire"
)

func TestDatagramsGoBetweenStreams(t *testing.T) {
	w := newRelay(t, nil).serveHTTP()
	a, b := w.member(1).stream(), w.member(2).stream()
	a.send(2, "hello", strings.Repeat("x", 1452), "!")
	b.want(1, "hello")
	b.want(1, strings.Repeat("x", 1452))
	b.want(1, "!")
	long := strings.Repeat("y", wire.MaxStreamBody-4)
	b.send(1, long)
	a.want(2, long)
	a.send(9, "nobody")
	a.send(1, "myself")
	a.want(1, "myself")
	if rtt, err := a.Ping(t.Context()); err != nil || rtt <= 0 {
		t.Errorf("ping: %v, %v", rtt, err)
	}
	eventually(t, "all is counted", func() bool {
		st := w.relay.Stats()
		return st.Streams == 2 && st.Nodes == 2 && st.SentStream.Datagrams == 5 && st.SentStream.Bytes == 5+1452+1+65531+6 && st.Drops[DropNoSuch] == 1
	})
	a.Close()
	eventually(t, "the node is forgotten", func() bool { st := w.relay.Stats(); return st.Streams == 1 && st.Nodes == 1 })
}

// stripUpgrade is an intermediary that knows no upgrade but WebSocket.
func stripUpgrade(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			r.Header.Del("Upgrade")
		}
		h.ServeHTTP(w, r)
	})
}

func TestWhereOnlyWebSocketPassesTheRelayIsReached(t *testing.T) {
	w := newRelay(t, nil)
	w.http = stripUpgrade(w.relay)
	w.serveHTTP()
	a, b := w.member(1).stream(), w.member(2).stream()
	if a.Info().Transport != stream.WebSocket {
		t.Errorf("came by %s", a.Info().Transport)
	}
	for i := range 200 {
		a.send(2, fmt.Sprint(i), strings.Repeat("x", 50*i+1))
		if i%10 == 9 { // not so much at once that a slow machine lets it grow old
			for j := i - 9; j <= i; j++ {
				b.want(1, fmt.Sprint(j))
				b.want(1, strings.Repeat("x", 50*j+1))
			}
		}
	}
}

func TestDatagramsCrossFromUDPToStreamsAndBack(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil).serveHTTP()
	u, s := w.member(1).udp().bind(), w.member(2).stream()
	for i := range 20 {
		u.send(2, fmt.Sprint("up ", i))
		s.want(1, fmt.Sprint("up ", i))
	}
	// As one batch: runs of equal and unequal datagrams.
	var batch []string
	for i := range 100 {
		batch = append(batch, fmt.Sprintf("%03d", i)+strings.Repeat("d", 1000+100*(i/10%2)))
	}
	s.send(1, batch...)
	for _, p := range batch {
		u.want(2, p)
	}
	s.send(1, strings.Repeat("z", 65500)) // fits a stream, not UDP
	s.send(1, "short")
	u.want(2, "short")
	eventually(t, "the long one is counted", func() bool { return w.relay.Stats().Drops[DropTooLong] == 1 })
}

func TestADatagramLeavesByTheTransportThatItCameBy(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil).serveHTTP()
	m := w.member(1)
	mu, ms := m.udp().bind(), m.stream()
	n := w.member(2)
	nu, ns := n.udp().bind(), n.stream()
	nu.send(1, "by UDP")
	mu.want(2, "by UDP")
	ms.wantNothing()
	ns.send(1, "by stream")
	ms.want(2, "by stream")
	mu.wantNothing()
	ms.Close()
	eventually(t, "the stream is gone", func() bool { return w.relay.Stats().Streams == 1 })
	ns.send(1, "by what is left")
	mu.want(2, "by what is left")
}

func TestASecondStreamOfANodeTakesThePlaceOfTheFirst(t *testing.T) {
	w := newRelay(t, nil).serveHTTP()
	m := w.member(1)
	first, peer := m.stream(), w.member(2).stream()
	second := m.stream()
	first.wantEnd()
	peer.send(1, "to the second")
	second.want(2, "to the second")
	if first.Err() == nil || first.SendTo(2, [][]byte{{1}}) == nil {
		t.Error("the first stream has not ended, or says nothing of it")
	}
}

func TestATicketThatIsNotGoodOpensNoStream(t *testing.T) {
	w := newRelay(t, nil).serveHTTP()
	for name, c := range map[string]struct {
		ticket func(m *member) []byte
		want   string
	}{
		"forged": {func(m *member) []byte { b := bytes.Clone(m.ticket); b[7] ^= 2; return b }, "not of this relay's server"},
		"expired": {func(m *member) []byte {
			return m.signed(func(t *wire.Ticket) { t.NotAfter = time.Now().Add(-time.Hour) })
		}, "expired by the relay's clock"},
		"stolen": {func(m *member) []byte { return m.w.member(7).ticket }, "not of this relay's server"},
		"none":   {func(*member) []byte { return nil }, "no ticket for relay r1 yet"},
	} {
		m := w.member(1)
		m.ticket = c.ticket(m)
		_, err := m.tryStream()
		if err == nil || !strings.Contains(err.Error(), c.want) || weft.CodeOf(err).Permanent() {
			t.Errorf("%s: %v", name, err)
		}
	}
	eventually(t, "nobody is left", func() bool { st := w.relay.Stats(); return st.Streams == 0 && st.Nodes == 0 })
}

func TestARelayWithAnotherKeyIsFoundOut(t *testing.T) {
	w := newRelay(t, nil).serveHTTP()
	other := w.desc
	w.desc.Key = key.NewPrivate[key.Relay]().Public()
	if _, err := w.member(1).tryStream(); err == nil { // the proof does not open at the relay
		t.Error("there is a stream")
	}
	// A relay that admits everybody without looking cannot answer either.
	liar := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, err := stream.Accept(rw, r, wire.RelayProto)
		if err != nil {
			return
		}
		defer c.Close()
		c.Write(append(wire.AppendStreamHeader(nil, wire.StreamHello, 16), make([]byte, 16)...))
		readFrame(c, wire.StreamBind, 1000)
		c.Write(append(wire.AppendStreamHeader(nil, wire.StreamBound, 32), make([]byte, 32)...))
		io.Copy(io.Discard, c)
	})
	w.desc, w.http = other, liar
	if _, err := w.serveHTTP().member(1).tryStream(); weft.CodeOf(err) != weft.CodeWrongServer {
		t.Errorf("says %v", err)
	}
}
