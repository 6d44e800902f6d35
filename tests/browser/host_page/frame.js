// The notebook of a host that shows outputs in a frame of another origin, as VS Code and Colab do.
const options = new URLSearchParams(location.search);
const frame = document.createElement('iframe');
frame.title = 'Output';
frame.src = `${options.get('origin')}/?${options}`;
frame.allow = options.get('allow');
document.body.append(frame);
