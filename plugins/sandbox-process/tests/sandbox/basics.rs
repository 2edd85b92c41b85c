//! What a well-behaved run gets.

use crate::support::*;

#[test]
fn hello() {
    let instance = Instance::new();
    let mut request = request(
        "def main(args):\n    print('hello', args['name'])\n    return {'hello': args['name']}\n",
    );
    request.args_json = br#"{"name":"world"}"#.to_vec();
    let (result, services) = instance.run(request);
    assert!(result.completed, "{result:?}\n{}", services.text());
    assert_eq!(result.output_json, br#"{"hello":"world"}"#);
    assert_eq!(services.text(), "hello world\n");
    assert_eq!((result.exit_code, result.signal), (0, 0));
    assert!(
        result.create_us > 0
            && result.exec_us > 0
            && result.cpu_us > 0
            && result.peak_memory_bytes > 1 << 20,
        "{result:?}"
    );
}
