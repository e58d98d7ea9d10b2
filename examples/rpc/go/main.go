// Drive `zot rpc` from Go, with nothing but the standard library.
//
//	go run . "say hello" --provider lab
//
// Further arguments are passed on to `zot rpc`. $ZOT is the program (default: zot).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// Frame has the fields of responses and events that this client looks at.
type Frame struct {
	Type, Command, Error, Delta, Name, Stop, Message string
	Success                                          bool
	Args                                             json.RawMessage
	IsError                                          bool `json:"is_error"`
}

// Zot is one `zot rpc` process: one conversation.
type Zot struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader // not a Scanner: that gives up on a line longer than its buffer
}

func start(program string, flags ...string) (*Zot, error) {
	process := exec.Command(program, append([]string{"rpc"}, flags...)...)
	process.Stderr = os.Stderr
	// In a group of its own, so that a Ctrl+C at the terminal reaches us alone: we abort and keep the process.
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &Zot{process, in, bufio.NewReader(out)}, process.Start()
}

// send writes one command. It may fail because zot is gone; the end of its output tells that better.
func (zot *Zot) send(command map[string]string) {
	_ = json.NewEncoder(zot.in).Encode(command) // one line, one write, LF at its end
}

// run sends a prompt and shows every event of it, done last.
func (zot *Zot) run(message string, show func(Frame)) error {
	zot.send(map[string]string{"id": "prompt", "type": "prompt", "message": message})
	for {
		var frame Frame
		line, err := zot.out.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("zot ended before it was done: %v", zot.close())
		}
		if err := json.Unmarshal(line, &frame); err != nil {
			return err
		}
		if frame.Type == "response" && !frame.Success {
			return fmt.Errorf("%s: %s", frame.Command, frame.Error)
		}
		show(frame)
		if frame.Type == "done" {
			return nil
		}
	}
}

// close ends the input of zot, which then finishes and exits.
func (zot *Zot) close() *os.ProcessState {
	_ = zot.in.Close()
	_ = zot.process.Wait()
	return zot.process.ProcessState
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal(`usage: go run . "PROMPT" [flags of zot rpc]`)
	}
	program, code := "zot", 0
	if given := os.Getenv("ZOT"); given != "" {
		program = given
	}
	zot, err := start(program, os.Args[2:]...)
	if err != nil {
		log.Fatal(err)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	go func() {
		<-interrupted
		signal.Reset(os.Interrupt) // a second Ctrl+C ends this program, and zot follows
		zot.send(map[string]string{"id": "abort", "type": "abort"})
	}()
	err = zot.run(os.Args[1], func(frame Frame) {
		switch {
		case frame.Type == "text_delta":
			fmt.Print(frame.Delta)
		case frame.Type == "assistant_message":
			fmt.Println()
		case frame.Type == "tool_call":
			log.Printf("[%s] %s", frame.Name, frame.Args)
		case frame.Type == "tool_result":
			log.Print(map[bool]string{true: "[failed]", false: "[ok]"}[frame.IsError])
		case frame.Type == "error":
			code = 1
			log.Print("error: ", frame.Message)
		case frame.Type == "turn_end" && frame.Stop == "aborted":
			code = 130
		}
	})
	zot.close()
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(code)
}
