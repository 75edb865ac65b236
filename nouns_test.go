package weft_test

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"weft"
)

// unmarshal reads a text into a new T.
func unmarshal[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](s string) (v T, err error) {
	err = P(&v).UnmarshalText([]byte(s))
	return v, err
}

func TestKindsAndMethodsComeBackFromTheirText(t *testing.T) {
	kinds := map[weft.CandidateKind]string{
		weft.Host: "host", weft.PortMapped: "portmap", weft.Static: "static",
		weft.ServerReflexive: "srflx", weft.PeerReflexive: "prflx",
	}
	for k, want := range kinds {
		text, err := k.MarshalText()
		if err != nil || string(text) != want || k.String() != want {
			t.Errorf("%d marshals as %q, %v; want %q", k, text, err, want)
		}
		if got, err := unmarshal[weft.CandidateKind](want); err != nil || got != k {
			t.Errorf("%q is %v, %v; want %v", want, got, err, k)
		}
	}
	methods := map[weft.Method]string{
		weft.NoMethod: "none", weft.RelayStream: "relay-stream", weft.RelayUDP: "relay-udp",
		weft.DirectTCP: "direct-tcp", weft.Direct: "direct",
	}
	for m, want := range methods {
		text, err := m.MarshalText()
		if err != nil || string(text) != want || m.String() != want {
			t.Errorf("%d marshals as %q, %v; want %q", m, text, err, want)
		}
		if got, err := unmarshal[weft.Method](want); err != nil || got != m {
			t.Errorf("%q is %v, %v; want %v", want, got, err, m)
		}
	}
	for i := range 256 {
		if _, ok := kinds[weft.CandidateKind(i)]; !ok && weft.CandidateKind(i).String() != "?" {
			t.Errorf("kind %d, which there is not, prints as %q", i, weft.CandidateKind(i))
		}
		if _, ok := methods[weft.Method(i)]; !ok && weft.Method(i).String() != "none" {
			t.Errorf("method %d, which there is not, prints as %q", i, weft.Method(i))
		}
	}
}

func TestAKindOfANewerNodeIsReadAsNone(t *testing.T) {
	for _, s := range []string{"", "?", "relayed", "Host"} {
		k := weft.PeerReflexive
		if err := k.UnmarshalText([]byte(s)); err != nil || k != 0 {
			t.Errorf("%q is read as %v, %v", s, k, err)
		}
	}
	m := weft.Direct
	if err := m.UnmarshalText([]byte("carrier-pigeon")); err == nil || m != weft.Direct {
		t.Errorf("a method that there is not is read as %v, %v", m, err)
	}
}

func TestAPathIsCalledByWhatAPersonWantsToKnow(t *testing.T) {
	for m, want := range map[weft.Method]weft.PathKind{
		weft.NoMethod: weft.PathNone, weft.RelayStream: weft.PathRelay, weft.RelayUDP: weft.PathRelay, weft.Direct: weft.PathDirect,
	} {
		if got := m.Kind(); got != want || m.Relayed() != (want == weft.PathRelay) {
			t.Errorf("%v is %q, relayed %v", m, got, m.Relayed())
		}
	}
	addr := netip.MustParseAddrPort("192.0.2.1:41641")
	for want, v := range map[string]weft.Via{
		"none":                       {},
		"direct 192.0.2.1:41641":     weft.DirectVia(2, addr),
		"direct [2001:db8::1]:41641": weft.DirectVia(2, netip.MustParseAddrPort("[2001:db8::1]:41641")),
		"relay-udp #3":               {Method: weft.RelayUDP, Relay: 3},
		"relay-stream #4":            {Method: weft.RelayStream, Relay: 4},
	} {
		if got := v.String(); got != want {
			t.Errorf("%#v prints as %q, want %q", v, got, want)
		}
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(addr.Addr().As16()), addr.Port())
	if weft.DirectVia(2, mapped) != weft.DirectVia(2, addr) {
		t.Error("one path has two Vias")
	}
}

func TestAnErrorIsKnownByItsCode(t *testing.T) {
	err := fmt.Errorf("joining: %w", &weft.Error{Code: weft.CodeSpentToken, Message: "the token was used"})
	if got := err.Error(); got != "joining: the token was used" {
		t.Errorf("it prints as %q", got)
	}
	if !errors.Is(err, &weft.Error{Code: weft.CodeSpentToken}) {
		t.Error("it is not of its own code")
	}
	if errors.Is(err, &weft.Error{Code: weft.CodeBadToken}) || errors.Is(errors.New("x"), &weft.Error{}) {
		t.Error("it is of another's code")
	}
	if errors.Is(err, &weft.Error{Code: weft.CodeSpentToken, Message: "another"}) {
		t.Error("two errors with messages are the same")
	}
	if got := weft.CodeOf(err); got != weft.CodeSpentToken {
		t.Errorf("its code is %q", got)
	}
	if weft.CodeOf(errors.New("x")) != "" || weft.CodeOf(nil) != "" {
		t.Error("what is no Error has a code")
	}
}

func TestTryingAgainHelpsAgainstSomeErrors(t *testing.T) {
	for code, want := range map[weft.Code]bool{
		weft.CodeBadToken: true, weft.CodeSpentToken: true, weft.CodeExpiredToken: true,
		weft.CodeRemoved: true, weft.CodeDenied: true, weft.CodeBadRequest: true,
		weft.CodeUnavailable: false, weft.CodeExpiredNode: false, weft.CodeWaiting: false, weft.CodeDisabled: false, weft.CodeInternal: false, weft.CodeExhausted: false, weft.CodeNameTaken: false,
		weft.CodeNotFound: false, weft.CodeWrongServer: false, "": false, "of a newer server": false,
	} {
		if got := code.Permanent(); got != want {
			t.Errorf("%q permanent: %v", code, got)
		}
	}
}

func TestWhoIsHeldMayComeBackWithoutAWord(t *testing.T) {
	for code, want := range map[weft.Code]bool{
		weft.CodeExpiredNode: true, weft.CodeWaiting: true, weft.CodeDisabled: true,
		weft.CodeRemoved: false, weft.CodeDenied: false, weft.CodeUnavailable: false, "": false,
	} {
		if got := code.Held(); got != want || got && code.Permanent() {
			t.Errorf("%q held: %v, permanent: %v", code, got, code.Permanent())
		}
	}
}
