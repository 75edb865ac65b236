package stream

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weft"
	"weft/key"
)

// nginx runs Debian's nginx on a loopback port in front of upstream, with what a location says in its
// configuration, and ends it with the test.
func nginx(t *testing.T, upstream, location string) (addr string) {
	binary, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed (apt install nginx-light)")
	}
	dir := t.TempDir()
	l := listen(t)
	addr = l.Addr().String()
	l.Close()
	config := fmt.Sprintf(`
daemon off;
master_process off;
error_log %[1]s/error.log info;
pid %[1]s/nginx.pid;
events { worker_connections 64; }
http {
	access_log off;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	map $http_upgrade $websocket_only { default ""; websocket $http_upgrade; }
	map $websocket_only $websocket_connection { default ""; websocket upgrade; }
	server {
		listen %[2]s;
		location /weft/ {
			proxy_pass http://%[3]s;
			proxy_set_header Host $host;
			%[4]s
		}
	}
}`, dir, addr, upstream, location)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-p", dir, "-c", file, "-e", filepath.Join(dir, "error.log"))
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(dir, "error.log"))
			t.Logf("nginx says:\n%s", b)
		}
	})
	eventually(t, "nginx answers", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return addr
}

const (
	passesAll = `proxy_http_version 1.1;
			proxy_set_header Upgrade $http_upgrade;
			proxy_set_header Connection "upgrade";`
	passesWebSocket = `proxy_http_version 1.1;
			proxy_set_header Upgrade $websocket_only;
			proxy_set_header Connection $websocket_connection;`
	passesNone = ``
)

func TestThroughNginx(t *testing.T) {
	server, machine := key.NewPrivate[key.Server](), key.NewPrivate[key.Machine]()
	backend := serve(t, listen(t), noiseEcho(t, server, 1<<20))
	dial := func(t *testing.T, addr string) (*Messages, error) {
		return DialNoise(testContext(t), Options{URL: "http://" + addr, Path: testPath, Proto: testProto}, machine, server.Public())
	}
	for _, c := range []struct {
		name, location string
		want           Transport
	}{{"that passes any upgrade", passesAll, Upgrade}, {"that passes WebSocket only", passesWebSocket, WebSocket}} {
		t.Run(c.name, func(t *testing.T) {
			m, err := dial(t, nginx(t, backend, c.location))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if m.Info().Transport != c.want {
				t.Errorf("came by %s", m.Info().Transport)
			}
			big := strings.Repeat("weft ", 200_000)
			go m.WriteMessage([]byte(big))
			got, err := m.ReadMessage(2 << 20)
			if err != nil || string(got) != machine.Public().String()+big {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
		})
	}
	t.Run("that strips all", func(t *testing.T) {
		_, err := dial(t, nginx(t, backend, passesNone))
		if weft.CodeOf(err) != weft.CodeUnavailable || !strings.Contains(fmt.Sprint(err), "takes the upgrade out of the request") || !strings.Contains(err.Error(), "(nginx/") {
			t.Errorf("says %v", err)
		}
	})
	t.Run("whose server is down", func(t *testing.T) {
		down := listen(t)
		down.Close()
		_, err := dial(t, nginx(t, down.Addr().String(), passesAll))
		if weft.CodeOf(err) != weft.CodeUnavailable || !strings.Contains(fmt.Sprint(err), "the weft server behind it is not") {
			t.Errorf("says %v", err)
		}
	})
	t.Run("with another path", func(t *testing.T) {
		_, err := DialNoise(testContext(t), Options{URL: "http://" + nginx(t, backend, passesAll), Path: "/elsewhere", Proto: testProto}, machine, server.Public())
		if weft.CodeOf(err) != weft.CodeNotFound || !strings.Contains(fmt.Sprint(err), "answers HTTP 404") {
			t.Errorf("says %v", err)
		}
	})
	t.Run("in front of another server", func(t *testing.T) {
		other := serve(t, listen(t), noiseEcho(t, key.NewPrivate[key.Server](), 1<<20))
		_, err := dial(t, nginx(t, other, passesAll))
		if weft.CodeOf(err) != weft.CodeWrongServer {
			t.Errorf("says %v", err)
		}
	})
}
