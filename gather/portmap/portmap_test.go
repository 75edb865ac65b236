package portmap

import (
	"encoding/binary"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/host"
)

func TestEachProtocolMapsKeepsAndGivesBackThePort(t *testing.T) {
	var epoch atomic.Uint32
	epoch.Store(1000)
	speaks := map[Protocol]func(*fake) func() bool{ // each returns whether the mapping was taken away
		PCP: func(f *fake) func() bool {
			var gone atomic.Bool
			f.answers(func(b []byte) [][]byte {
				if b[0] == pcpVersion && b[1] == opMap {
					gone.Store(binary.BigEndian.Uint32(b[4:]) == 0)
					return [][]byte{mapOf(b, nil)}
				}
				return nil
			})
			return gone.Load
		},
		NATPMP: func(f *fake) func() bool {
			var gone atomic.Bool
			f.answers(func(b []byte) [][]byte {
				switch {
				case b[0] != natpmpVersion: // as RFC 6887 appendix A says
					return [][]byte{{0, b[1] | pcpAnswer, 0, 1, 0, 0, 0, 9}}
				case b[1] == opAddress:
					return [][]byte{addressOf(testExternal, epoch.Load())}
				}
				gone.Store(binary.BigEndian.Uint32(b[8:]) == 0)
				return [][]byte{portOf(b, epoch.Load(), nil)}
			})
			return gone.Load
		},
		UPnP: func(f *fake) func() bool {
			d := f.upnp(nil)
			return func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return len(d.entries) == 0
			}
		},
	}
	for p, speak := range speaks {
		t.Run(string(p), func(t *testing.T) {
			f := newFake(t)
			gone := speak(f)
			w := start(t, nil, f)
			want := State{Gateway: f.addr, Mapping: Mapping{
				Protocol: p, Internal: netip.MustParseAddrPort("127.0.0.1:4000"), External: netip.AddrPortFrom(testExternal, 4000),
			}}
			if s := w.settled(); s != want {
				t.Errorf("%+v, want %+v", s, want)
			}
			if gone() {
				t.Error("it is given back at once")
			}
			if got := Candidates(w.States()); !slices.Equal(got, []weft.Candidate{{Addr: want.Mapping.External, Kind: weft.PortMapped}}) {
				t.Errorf("peers are told %v", got)
			}
			began := time.Now()
			w.stop()
			if !gone() {
				t.Error("the mapping stays when the node ends")
			}
			if d := time.Since(began); d > 2500*time.Millisecond {
				t.Errorf("the end takes %v", d)
			}
		})
	}
}

// What a router that is broken, or somebody who plays one, says.
func TestNonsenseIsNoMapping(t *testing.T) {
	pcpSays := func(change func(b []byte)) func(*fake) {
		return func(f *fake) {
			f.answers(func(b []byte) [][]byte {
				if b[0] != pcpVersion {
					return nil
				}
				return [][]byte{mapOf(b, change)}
			})
		}
	}
	natpmpSays := func(external netip.Addr, change func(b []byte)) func(*fake) {
		return func(f *fake) {
			f.answers(func(b []byte) [][]byte {
				switch {
				case b[0] != natpmpVersion:
					return nil
				case b[1] == opAddress:
					return [][]byte{addressOf(external, 1)}
				}
				return [][]byte{portOf(b, 1, change)}
			})
		}
	}
	ip := func(s string) func([]byte) {
		a := netip.MustParseAddr(s).As16()
		return func(b []byte) { copy(b[44:], a[:]) }
	}
	put16 := func(at int, v uint16) func([]byte) { return func(b []byte) { binary.BigEndian.PutUint16(b[at:], v) } }
	put32 := func(at int, v uint32) func([]byte) { return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v) } }
	says := func(change func(*device)) func(*fake) { return func(f *fake) { f.upnp(change) } }
	none := errNone.Error()
	for _, c := range []struct {
		name    string
		router  func(*fake)
		problem string
	}{
		{"PCP: port 0", pcpSays(put16(42, 0)), "port 0"},
		{"PCP: no address", pcpSays(ip("0.0.0.0")), "not connected"},
		{"PCP: loopback", pcpSays(ip("127.0.0.1")), "which is none"},
		{"PCP: a group", pcpSays(ip("224.0.0.1")), "which is none"},
		{"PCP: everybody", pcpSays(ip("255.255.255.255")), "which is none"},
		{"PCP: IPv6", pcpSays(ip("2001:db8::1")), "which is none"},
		{"PCP: for no time", pcpSays(put32(4, 0)), "too short"},
		{"PCP: another's nonce", pcpSays(func(b []byte) { b[24]++ }), none},
		{"PCP: of another port", pcpSays(put16(40, 4001)), none},
		{"PCP: of TCP", pcpSays(func(b []byte) { b[36] = 6 }), none},
		{"PCP: a request", pcpSays(func(b []byte) { b[1] = opMap }), none},
		{"PCP: not allowed", pcpSays(func(b []byte) { b[3] = byte(pcpNotAuthorized) }), "does not allow"},
		{"PCP: another NAT", pcpSays(func(b []byte) { b[3] = byte(pcpAddressMismatch) }), "a NAT stands between"},
		{"NAT-PMP: port 0", natpmpSays(testExternal, put16(10, 0)), "port 0"},
		{"NAT-PMP: no address", natpmpSays(netip.IPv4Unspecified(), nil), "not connected"},
		{"NAT-PMP: of another port", natpmpSays(testExternal, put16(8, 4001)), none},
		{"NAT-PMP: for a second", natpmpSays(testExternal, put32(12, 1)), "too short"},
		{"NAT-PMP: not allowed", natpmpSays(testExternal, put16(2, 2)), "does not allow"},
		{"UPnP: no address", says(func(d *device) { d.external = "0.0.0.0" }), "not connected"},
		{"UPnP: an empty address", says(func(d *device) { d.external = "" }), "not connected"},
		{"UPnP: a name", says(func(d *device) { d.external = "victim.example" }), "not connected"},
		{"UPnP: a group", says(func(d *device) { d.external = "239.0.0.1" }), "which is none"},
		{"UPnP: an endless address", says(func(d *device) { d.external = strings.Repeat("1", 1000) }), "too long"},
		{"UPnP: not allowed", says(func(d *device) {
			d.fault = func(action string, _ map[string]string) int {
				if action == "AddPortMapping" {
					return faultNotAuthorized
				}
				return 0
			}
		}), "does not allow"},
		{"UPnP: control elsewhere", says(func(d *device) { d.control = "http://127.0.0.1:9/" }), "not on it"},
		{"UPnP: control by a name", says(func(d *device) { d.control = "http://localhost/" }), "not on it"},
		{"UPnP: control of a file", says(func(d *device) { d.control = "file:///etc/passwd" }), "not on it"},
		{"UPnP: base elsewhere", says(func(d *device) { d.base = "http://127.0.0.1:9/" }), "not on it"},
		{"UPnP: another device", says(func(d *device) { d.kind = "urn:schemas-upnp-org:service:RenderingControl:1" }), none},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			c.router(f)
			if s := start(t, nil, f).settled(); s.Mapping != (Mapping{}) || !strings.Contains(s.Problem, c.problem) {
				t.Errorf("%+v, want a problem with %q", s, c.problem)
			}
		})
	}
}

func TestAPrivateExternalAddressMeansASecondNAT(t *testing.T) {
	for external, second := range map[string]bool{
		"10.1.2.3": true, "172.16.0.1": true, "192.168.0.9": true, "100.64.0.1": true, "169.254.1.1": true, "192.0.0.2": true,
		"198.51.100.7": false, "100.128.0.1": false, "172.32.0.1": false,
	} {
		f := newFake(t)
		a := netip.MustParseAddr(external)
		f.answers(func(b []byte) [][]byte {
			if b[0] != pcpVersion {
				return nil
			}
			return [][]byte{mapOf(b, func(b []byte) { ip := a.As16(); copy(b[44:], ip[:]) })}
		})
		w := start(t, nil, f)
		if s := w.settled(); s.Mapping.DoubleNAT != second || s.Mapping.External.Addr() != a {
			t.Errorf("%s: %+v", external, s)
		}
		w.stop()
	}
}

func TestAnswersOfOthersThanTheGatewayDoNotCount(t *testing.T) {
	f, other := newFake(t), newFake(t)
	liar := other.listen(serverPort)
	f.udp = f.listen(serverPort)
	go func() { // the gateway is silent, and somebody else answers what it was asked
		buf := make([]byte, 2048)
		for {
			n, from, err := f.udp.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if buf[0] == pcpVersion {
				liar.WriteToUDPAddrPort(mapOf(buf[:n], nil), from)
			}
		}
	}()
	// And so with searches.
	fetched := atomic.Int32{}
	count := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched.Add(1) })
	at, own := serve(t, other.addr, count), serve(t, f.addr, count)
	search, voice := f.listen(ssdpPort), other.listen(ssdpPort)
	go func() {
		buf := make([]byte, 2048)
		for {
			_, from, err := search.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			// The gateway names a place elsewhere, and somebody elsewhere one on the gateway.
			search.WriteToUDPAddrPort([]byte("HTTP/1.1 200 OK\r\nLOCATION: "+at+"\r\n\r\n"), from)
			voice.WriteToUDPAddrPort([]byte("HTTP/1.1 200 OK\r\nLOCATION: "+own+"\r\n\r\n"), from)
		}
	}()
	if s := start(t, nil, f).settled(); s.Problem != errNone.Error() || fetched.Load() != 0 {
		t.Errorf("%+v, and %d documents of others were fetched", s, fetched.Load())
	}
}

func TestDocumentsAreFetchedOfTheGatewayAlone(t *testing.T) {
	other := newFake(t)
	hits := atomic.Int32{}
	elsewhere := serve(t, other.addr, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	for name, h := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere, http.StatusFound) },
		"a document without an end": func(w http.ResponseWriter, r *http.Request) {
			for b := make([]byte, 1<<16); ; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		},
		"endless headers": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		},
		"nothing":  func(w http.ResponseWriter, r *http.Request) {},
		"an error": func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusNotFound) },
		"no XML":   func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("<a><b></a")) },
		"deep XML": func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(strings.Repeat("<a>", 10000))) },
		"an entity": func(w http.ResponseWriter, r *http.Request) {
			w.Write([]byte(`<!DOCTYPE a [<!ENTITY b SYSTEM "` + elsewhere + `">]><a>&b;</a>`))
		},
		"no content": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.searchable(serve(t, f.addr, h) + "/")
			if s := start(t, nil, f).settled(); s.Problem == "" || s.Mapping != (Mapping{}) {
				t.Errorf("%+v", s)
			}
		})
	}
	if hits.Load() != 0 {
		t.Errorf("%d documents of others were fetched", hits.Load())
	}
}

func TestPCPThatRefusesLeavesItToUPnP(t *testing.T) {
	f := newFake(t)
	f.answers(func(b []byte) [][]byte {
		if b[0] == pcpVersion {
			return [][]byte{mapOf(b, func(b []byte) { b[3] = byte(pcpNotAuthorized) })}
		}
		return nil
	})
	f.upnp(nil)
	if s := start(t, nil, f).settled(); s.Mapping.Protocol != UPnP {
		t.Errorf("%+v", s)
	}
}

func TestANewExternalAddressIsTold(t *testing.T) {
	f := newFake(t)
	var now atomic.Pointer[netip.Addr]
	first, second := testExternal, netip.MustParseAddr("198.51.100.8")
	now.Store(&first)
	f.answers(func(b []byte) [][]byte {
		switch {
		case b[0] != natpmpVersion:
			return nil
		case b[1] == opAddress:
			return [][]byte{addressOf(*now.Load(), 7)}
		}
		return [][]byte{portOf(b, 7, nil)}
	})
	w := start(t, nil, f)
	if s := w.settled(); s.Mapping.External.Addr() != first {
		t.Fatalf("%+v", s)
	}
	now.Store(&second)
	w.Recheck() // the next look is an hour away
	w.until("the new address", func(s []State) bool { return len(s) == 1 && s[0].Mapping.External.Addr() == second })
}

// A router whose epoch begins anew has lost its mappings: the port is mapped again, though half its life is far away.
func TestARestartedRouterIsAskedAgain(t *testing.T) {
	for _, p := range []Protocol{PCP, NATPMP} {
		t.Run(string(p), func(t *testing.T) {
			f := newFake(t)
			var epoch, maps atomic.Uint32
			epoch.Store(100000)
			put := func(b []byte) { binary.BigEndian.PutUint32(b[8:], epoch.Load()) }
			f.answers(func(b []byte) [][]byte {
				switch {
				case b[0] == pcpVersion && p == NATPMP, b[0] == natpmpVersion && p == PCP:
					return nil
				case b[0] == pcpVersion && b[1] == opAnnounce:
					answer := append([]byte{pcpVersion, pcpAnswer, 0, 0}, make([]byte, 20)...)
					put(answer)
					return [][]byte{answer}
				case b[0] == pcpVersion:
					maps.Add(1)
					return [][]byte{mapOf(b, put)}
				case b[1] == opAddress:
					return [][]byte{addressOf(testExternal, epoch.Load())}
				}
				maps.Add(1)
				return [][]byte{portOf(b, epoch.Load(), nil)}
			})
			w := start(t, func(c *Client) { c.timing.check = 20 * time.Millisecond }, f)
			w.settled()
			looked := len(f.requests())
			eventually(t, "five looks", func() bool { return len(f.requests()) > looked+5 })
			if n := maps.Load(); n != 1 {
				t.Errorf("mapped %d times by a router that just runs", n)
			}
			epoch.Store(3)
			eventually(t, "the port is mapped again", func() bool { return maps.Load() == 2 })
		})
	}
}

func TestAMappingIsRenewedAtHalfItsLife(t *testing.T) {
	for _, p := range []Protocol{PCP, NATPMP, UPnP} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			maps := func() int { return 0 }
			if p == UPnP {
				d := f.upnp(nil)
				maps = func() (n int) {
					for _, action := range d.did() {
						if action == "AddPortMapping" {
							n++
						}
					}
					return n
				}
			} else {
				began := time.Now()
				epoch := func() uint32 { return uint32(1000 + time.Since(began)/time.Second) }
				put := func(b []byte) { binary.BigEndian.PutUint32(b[8:], epoch()) }
				f.answers(func(b []byte) [][]byte {
					switch {
					case b[0] == pcpVersion && p == NATPMP, b[0] == natpmpVersion && p == PCP:
						return nil
					case b[0] == pcpVersion && b[1] == opAnnounce:
						answer := append([]byte{pcpVersion, pcpAnswer, 0, 0}, make([]byte, 20)...)
						put(answer)
						return [][]byte{answer}
					case b[0] == pcpVersion:
						return [][]byte{mapOf(b, put)}
					case b[1] == opAddress:
						return [][]byte{addressOf(testExternal, epoch())}
					}
					return [][]byte{portOf(b, epoch(), nil)}
				})
				maps = func() (n int) {
					for _, b := range f.requests() {
						if b[0] == pcpVersion && p == PCP && b[1] == opMap || b[0] == natpmpVersion && p == NATPMP && b[1] == opMapUDP {
							n++
						}
					}
					return n
				}
			}
			w := start(t, func(c *Client) {
				c.timing.lifetime, c.timing.least, c.timing.check = 3*time.Second, time.Second, 100*time.Millisecond
			}, f)
			w.settled()
			began := time.Now()
			eventually(t, "the first renewal", func() bool { return maps() == 2 })
			if d := time.Since(began); d < 1300*time.Millisecond || d > 2900*time.Millisecond {
				t.Errorf("renewed after %v of 3 s", d)
			}
		})
	}
}

func TestGatewaysComeAndGo(t *testing.T) {
	a, b := newFake(t), newFake(t)
	for _, f := range []*fake{a, b} {
		f.answers(func(b []byte) [][]byte {
			if b[0] != pcpVersion || b[1] != opMap {
				return nil
			}
			return [][]byte{mapOf(b, nil)}
		})
	}
	var list atomic.Pointer[[]host.Gateway]
	list.Store(&[]host.Gateway{a.gateway()})
	w := start(t, func(c *Client) {
		c.cfg.Gateways = func() ([]host.Gateway, error) { return *list.Load(), nil }
	}, a)
	w.settled()
	list.Store(&[]host.Gateway{a.gateway(), b.gateway()})
	w.Recheck()
	w.until("both", func(s []State) bool { return len(Candidates(s)) == 2 })
	list.Store(&[]host.Gateway{b.gateway()})
	w.Recheck()
	w.until("the second alone", func(s []State) bool { return len(s) == 1 && s[0].Gateway == b.addr && s[0].Mapping.External.IsValid() })
	eventually(t, "the first is told that its mapping is not needed", func() bool {
		return slices.ContainsFunc(a.requests(), func(b []byte) bool {
			return b[0] == pcpVersion && b[1] == opMap && binary.BigEndian.Uint32(b[4:]) == 0
		})
	})
	list.Store(&[]host.Gateway{})
	w.Recheck()
	w.until("none", func(s []State) bool { return len(s) == 0 })
}

func TestNudgesDoNotKeepARouterBusy(t *testing.T) {
	f := newFake(t)
	f.answers(func(b []byte) [][]byte {
		if b[0] != pcpVersion {
			return nil
		}
		if b[1] == opAnnounce {
			return [][]byte{append([]byte{pcpVersion, pcpAnswer, 0, 0}, make([]byte, 20)...)}
		}
		return [][]byte{mapOf(b, nil)}
	})
	w := start(t, func(c *Client) { c.timing.gap = 200 * time.Millisecond }, f)
	w.settled()
	before, began := len(f.requests()), time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 1000 {
		w.Recheck()
		<-tick.C
	}
	took := time.Since(began)
	if n := len(f.requests()) - before; n < 2 || n > 1+int(took/(200*time.Millisecond)) {
		t.Errorf("%d requests in %v of nudges", n, took)
	}
}

// eventually polls real IO.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !f(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
